package bus

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// NATS users that are not functions.
const (
	UserOperator = "operator" // may do everything in the account; for people and their tools
	UserTrigger  = "trigger"
	UserAll      = "sendonce" // a process that serves all functions
)

// account is the NATS account of the streams and of all users except receivers. Each receiver has its own
// account.
const account = "SENDONCE"

// Limits of nats-server that ServerConfig and ReceiverConfig set. With these, a user can make the server keep
// MaxPending bytes for each connection from which the user does not read, and about 10 KiB for each subscription with a
// long subject.
const (
	MaxPending            = 4 << 20 // bytes that wait for one connection; with more, the server closes the connection
	maxTokens             = 16      // of the subject of a subscription; without a limit, a subscription could use 0.8 MB of the server
	accountConnections    = 200     // of all functions, triggers and operators together
	receiverConnections   = 16      // of one receiver
	receiverSubscriptions = 256     // of one connection of a receiver
)

// Domain is the JetStream domain through which a receiver reaches its consumer.
const Domain = "sendonce"

// User has the permissions of one component in NATS. NATS denies everything else.
type User struct {
	Name      string
	Publish   []string // subjects, including those of requests to the JetStream API
	Subscribe []string // subjects, in addition to those of its replies (ReplyPrefix)
}

// Users returns the users with their permissions: every function, sendonce, the trigger and the operator; see doc.go
// for the reasons. accepted is the name of the stream of accepted messages. subjects are of streams of other services;
// relay and deliver may publish to these subjects too.
func Users(accepted string, subjects ...string) []User {
	const findStream = "$JS.API.STREAM.NAMES" // looks up the stream of a subject
	// Every function may wake other functions, receive the names of changed callers, and read, when it starts, the
	// durability of the stream of accepted messages.
	function := func(name string, publish ...[]string) User {
		return User{
			Name:      name,
			Publish:   slices.Concat(append([][]string{{wakePrefix + ">", schedPrefix + ">"}, api("STREAM.INFO", accepted)}, publish...)...),
			Subscribe: []string{subjectCallers},
		}
	}
	accept := slices.Concat([]string{AcceptPrefix + ">", findStream}, api("STREAM.MSG.GET", accepted), api("CONSUMER.LIST", accepted))
	publishedStreams := []string{StreamEvents, StreamMessages, StreamUsers}
	recorded := api("CONSUMER.INFO", StreamEvents+"."+RecordDurable)
	publish := slices.Concat([]string{MessagePrefix + ">", UserPrefix + ">", findStream}, subjects, api("STREAM.INFO", publishedStreams...))
	trim := slices.Concat(
		api("STREAM.MSG.GET", publishedStreams...), api("STREAM.PURGE", publishedStreams...), api("STREAM.MSG.DELETE", StreamMessages, StreamUsers),
		recorded, api("CONSUMER.LIST", StreamMessages), surroundEach(headersPrefix, headerStreams, ""))

	claim := function("claim")
	claim.Subscribe = append(claim.Subscribe, queuePrefix+"*")
	stream := function("stream", accept, api("STREAM.INFO", StreamUsers), api("STREAM.MSG.GET", StreamUsers))
	stream.Subscribe = append(stream.Subscribe, UserPrefix+"*")
	functions := []User{
		function("submit"),
		claim,
		function("report"),
		function("subscribe"),
		function("messages", accept),
		stream,
		function("webhooks"),
		function("admin", []string{subjectCallers}),
		// The pages of console call routes of other functions in the process of console, admin and messages among them.
		function("console", []string{subjectCallers}, api("STREAM.MSG.GET", accepted), api("CONSUMER.LIST", accepted)),
		function("sweep"),
		function("relay", publish, recorded, []string{EventPrefix + ">"}),
		function("deliver", publish, trim, []string{EventDelivered}, api("STREAM.INFO", StreamDeadLetters)),
		function("save", api("STREAM.MSG.GET", accepted), api("STREAM.PURGE", accepted), api("CONSUMER.LIST", accepted)),
		function("wechat"),
		function("exporter", api("STREAM.INFO", append([]string{StreamDeadLetters}, publishedStreams...)...)),
	}

	all := User{Name: UserAll}
	for _, f := range functions {
		all.Publish = append(all.Publish, f.Publish...)
		all.Subscribe = append(all.Subscribe, f.Subscribe...)
	}
	slices.Sort(all.Publish)
	slices.Sort(all.Subscribe)
	all.Publish, all.Subscribe = slices.Compact(all.Publish), slices.Compact(all.Subscribe)
	streams := []string{StreamWake, accepted, StreamEvents, StreamMessages, StreamUsers, StreamDeadLetters}
	pulled := []string{StreamWake, accepted, StreamEvents}
	trigger := User{Name: UserTrigger, Publish: slices.Concat([]string{wakePrefix + ">", DeadLetterPrefix + ">", findStream},
		api("STREAM.INFO", streams...), api("STREAM.CREATE", streams...), api("STREAM.UPDATE", streams...),
		api("CONSUMER.LIST", pulled...), surroundEach("$JS.ACK.", pulled, ".>")), Subscribe: []string{headersPrefix + "*"}}
	for _, request := range []string{"INFO", "CREATE", "MSG.NEXT", "UNPIN", "DELETE"} {
		trigger.Publish = append(trigger.Publish, surroundEach("$JS.API.CONSUMER."+request+".", pulled, ".>")...)
	}
	for _, request := range []string{"CREATE", "MSG.NEXT", "DELETE"} {
		trigger.Publish = append(trigger.Publish, surroundEach("$JS.API.CONSUMER."+request+".", headerStreams, ".*")...)
	}
	for _, user := range []string{"deliver", UserAll} { // the trigger replies to their requests for headers
		trigger.Publish = append(trigger.Publish, ReplyPrefix(user)+".>")
	}
	return append(functions, all, trigger, User{Name: UserOperator, Publish: []string{">"}, Subscribe: []string{">"}})
}

// CheckSubject rejects invalid subjects, subjects of NATS, and those of Sendonce except msg.>. Check with it the subjects
// that you pass to Users. Otherwise relay and deliver could, for example, get the permission to send requests to NATS
// or to write accepted messages.
func CheckSubject(subject string) error {
	tokens := strings.Split(subject, ".")
	for i, t := range tokens {
		isName := t != "" && strings.Trim(t, nameChars) == ""
		isWildcard := t == "*" || t == ">" && i == len(tokens)-1
		if !isName && !isWildcard {
			return fmt.Errorf("%q: must be a subject such as orders.> of letters, digits, _ and -", subject)
		}
	}
	switch {
	case strings.ContainsAny(tokens[0], "*>"), strings.HasPrefix(tokens[0], "_"):
		return fmt.Errorf("%q: must begin with a name, as orders.> does, not with a wildcard or _", subject)
	case slices.Contains([]string{wakePrefix, AcceptPrefix, schedPrefix, DeadLetterPrefix, EventPrefix, UserPrefix}, tokens[0]+"."), tokens[0] == "notify":
		return fmt.Errorf("%q: must not be one of Sendonce's own subjects", subject)
	}
	return nil
}

// CheckReceivers rejects invalid names, and names whose password variable another user or receiver has.
func CheckReceivers(users []User, receivers []string) error {
	owner := map[string]string{}
	for _, u := range users {
		owner[PasswordVariable(u.Name)] = u.Name
	}
	for _, name := range receivers {
		if strings.Trim(name, nameChars) != "" || name == "" {
			return fmt.Errorf("receiver %q: must be letters, digits, _ and -", name)
		}
		variable := PasswordVariable(name)
		if other, taken := owner[variable]; taken {
			return fmt.Errorf("receiver %q: must not have the name, or the password variable %s, of %q", name, variable, other)
		}
		owner[variable] = name
	}
	return nil
}

// api returns the subjects of one request of the JetStream API, such as STREAM.INFO. names are names of streams, or
// stream.consumer.
func api(request string, names ...string) []string {
	return surroundEach("$JS.API."+request+".", names, "")
}

func surroundEach(before string, names []string, after string) []string {
	result := make([]string, len(names))
	for i, name := range names {
		result[i] = before + name + after
	}
	return result
}

// PasswordVariable returns the name of the variable in the configuration of nats-server that has the password of a
// user or receiver.
func PasswordVariable(user string) string {
	return "NATS_PASSWORD_" + strings.ToUpper(strings.ReplaceAll(user, "-", "_"))
}

// PasswordConfig returns the variables that ServerConfig and ReceiverConfig use. A password must not
// contain quotes or backslashes.
func PasswordConfig(passwords map[string]string) string {
	var b strings.Builder
	for _, user := range slices.Sorted(maps.Keys(passwords)) {
		fmt.Fprintf(&b, "%s: %q\n", PasswordVariable(user), passwords[user])
	}
	return b.String()
}

// ServerConfig returns the part of a nats-server configuration that has the limits of connections, the
// account and its users. In the file, the PasswordConfig must come before the ServerConfig. receivers is
// the concatenated ReceiverConfig of all receivers. Instead of the PasswordConfig, and instead of receivers,
// there may be a line that includes a file.
func ServerConfig(users []User, receivers string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `max_pending: %[3]d # for one connection; a client that reads too slowly is disconnected
max_sub_tokens: %[5]d # of the subject of a subscription, which uses memory for each token
accounts {
  %[1]s {
    limits { max_connections: %[4]d }
    jetstream { max_mem: 64MB, max_streams: 32, max_consumers: 1000 }
    # The account of each receiver imports from these exports only what concerns its own consumer.
    exports: [
      {service: "$JS.API.CONSUMER.INFO.%[2]s.*"}
      {service: "$JS.API.CONSUMER.MSG.NEXT.%[2]s.*", response_type: stream}
      {service: "$JS.ACK.%[2]s.>"}
    ]
    users: [
`, account, StreamMessages, MaxPending, accountConnections, maxTokens)
	for _, u := range users {
		fmt.Fprintf(&b, "      {user: %s, password: $%s, permissions: {\n        publish: [%s]\n        subscribe: [%s]\n      }}\n",
			u.Name, PasswordVariable(u.Name), quoted(u.Publish), quoted(append([]string{ReplyPrefix(u.Name) + ".>"}, u.Subscribe...)))
	}
	b.WriteString("    ]\n  }\n" + receivers + "}\n")
	return b.String()
}

// ServerFile returns ServerConfig as a file that includes the passwords from another file beside it.
func ServerFile(users []User, receivers string) string {
	return `# The users of NATS and what each may do, as "sendonce nats-users" prints them.
# The passwords are lines such as NATS_PASSWORD_SUBMIT: "..." in this file:
include "secrets/nats-passwords.conf"
` + ServerConfig(users, receivers)
}

func quoted(subjects []string) string {
	return `"` + strings.Join(subjects, `", "`) + `"`
}

// ReceiverConfig returns the account of a service that receives messages to subjects. The service may only
// fetch from the consumer of its name on MESSAGES and acknowledge. An operator creates that consumer: its
// filter decides which subjects the service may read. Check the name with CheckReceivers.
func ReceiverConfig(name string) string {
	return fmt.Sprintf(`  receiver-%[1]s {
    limits { max_connections: %[6]d, max_subscriptions: %[7]d }
    users: [{user: %[1]s, password: $%[2]s}]
    imports: [
      {service: {account: %[3]s, subject: "$JS.API.CONSUMER.INFO.%[4]s.%[1]s"}, to: "$JS.%[5]s.API.CONSUMER.INFO.%[4]s.%[1]s"}
      {service: {account: %[3]s, subject: "$JS.API.CONSUMER.MSG.NEXT.%[4]s.%[1]s"}, to: "$JS.%[5]s.API.CONSUMER.MSG.NEXT.%[4]s.%[1]s"}
      {service: {account: %[3]s, subject: "$JS.ACK.%[4]s.%[1]s.>"}}
    ]
  }
`, name, PasswordVariable(name), account, StreamMessages, Domain, receiverConnections, receiverSubscriptions)
}
