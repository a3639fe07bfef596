package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Durability is the set of failures that an accepted message survives while it is not saved. The zero value, of a
// stream in memory, is the empty set.
type Durability uint8

// The levels of a stream. DurableHost does not cover DurableReplicated, nor does DurableReplicated cover
// DurableHost. The operator must place replicas on different hosts.
const (
	DurableProcess        Durability = 1                               // survives the death of any process
	DurableHost           Durability = DurableProcess | 2              // also survives a power loss
	DurableReplicated     Durability = DurableProcess | 4              // also survives the loss of a host with its disk, but not a power loss of all hosts
	DurableReplicatedHost Durability = DurableHost | DurableReplicated // survives all of these failures
)

const (
	quorumReplicas = 3 // a stream with two replicas stops if one is lost
	monitorTimeout = time.Second
	monitorLimit   = 1 << 20 // bytes of a reply
)

var durabilityNames = map[Durability]string{
	DurableProcess: "process", DurableHost: "host", DurableReplicated: "replicated", DurableReplicatedHost: "replicated-host",
}

// String returns the name in the API; "nothing" for 0.
func (d Durability) String() string {
	if name, known := durabilityNames[d]; known {
		return name
	}
	return "nothing"
}

// Covers reports whether d survives everything that least survives.
func (d Durability) Covers(least Durability) bool { return d&least == least }

// Decode sets d to the level with this name; "" changes nothing.
func (d *Durability) Decode(name string) error {
	if name == "" {
		return nil
	}
	for level, levelName := range durabilityNames {
		if levelName == name {
			*d = level
			return nil
		}
	}
	return errors.New("must be process, host, replicated or replicated-host")
}

// Durability returns the level of the stream of accepted messages. monitors are the monitoring URLs
// of NATS servers, separated by commas, such as http://host:8222. The level includes DurableHost only if
// each server with a replica reports, at its monitoring URL, that it syncs every write (see readMonitor). With an
// ErrUnavailable the stream may survive more than the returned level.
func (b *Bus) Durability(ctx context.Context, monitors string) (Durability, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	var info *jetstream.StreamInfo
	err := b.withAcceptStream(ctx, func(_ context.Context, conn *Connection, s jetstream.Stream) error {
		if !conn.isStrict {
			return ErrOldServer
		}
		info = s.CachedInfo()
		return nil
	})
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return 0, unavailable(errStreamMissing(b.cfg.acceptStream()))
	case err != nil:
		return 0, err
	}
	if info.Config.Storage != jetstream.FileStorage {
		return 0, nil
	}
	level := DurableProcess
	if info.Config.Replicas >= quorumReplicas {
		level = DurableReplicated
	}
	if monitors == "" || info.Config.PersistMode == jetstream.AsyncPersistMode {
		return level, nil
	}
	replicas, err := replicasOf(info)
	if err != nil {
		return level, unavailable(err)
	}
	syncing, err := syncingServers(ctx, monitors)
	mayNotSync := func(name string) bool { return !syncing[name] }
	switch {
	case !slices.ContainsFunc(replicas, mayNotSync):
		return level | DurableHost, nil // the result of a failed monitor was not needed
	case err != nil:
		return level, unavailable(err)
	}
	return level, nil
}

// replicasOf returns the names of the servers with a replica of a stream.
func replicasOf(s *jetstream.StreamInfo) ([]string, error) {
	if s.Cluster == nil || s.Cluster.Leader == "" {
		return nil, fmt.Errorf("stream %s has no leader", s.Config.Name)
	}
	replicas := []string{s.Cluster.Leader}
	for _, peer := range s.Cluster.Replicas {
		replicas = append(replicas, peer.Name)
	}
	return replicas, nil
}

// syncingServers returns the names of the servers that report that they sync every write. The error joins
// the errors of the monitors that failed; the result has the servers of the other monitors.
func syncingServers(ctx context.Context, monitors string) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, monitorTimeout)
	defer cancel()
	urls := strings.Split(monitors, ",")
	names, errs := make([]string, len(urls)), make([]error, len(urls))
	var reading sync.WaitGroup
	for i, monitor := range urls {
		reading.Go(func() { names[i], errs[i] = readMonitor(ctx, strings.TrimSpace(monitor)) })
	}
	reading.Wait()
	syncing := map[string]bool{}
	for _, name := range names {
		syncing[name] = name != "" // "" = this server does not sync, or its monitor failed
	}
	return syncing, errors.Join(errs...)
}

// readMonitor returns the name of the server at monitor if the server syncs every write, else "". For that, its
// sync_interval must be always, and its version 2.15 or later: older servers do not sync when they compact.
func readMonitor(ctx context.Context, monitor string) (string, error) {
	// Only /varz has the server's name, by which the stream lists its replicas.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(monitor, "/")+"/varz", nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var vars struct {
		Name      string `json:"server_name"`
		Version   string `json:"version"`
		JetStream struct {
			Config struct {
				SyncAlways bool `json:"sync_always"`
			} `json:"config"`
		} `json:"jetstream"`
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s returned %s", req.URL.Redacted(), res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, monitorLimit)).Decode(&vars); err != nil {
		return "", fmt.Errorf("GET %s: %w", req.URL.Redacted(), err)
	}
	if !vars.JetStream.Config.SyncAlways || !syncedCompaction.isReachedBy(vars.Version) {
		return "", nil
	}
	return vars.Name, nil
}
