package task

import (
	"fmt"
	"strings"
)

// otherQueues stands for every queue without a value of its own.
const otherQueues = "*"

// parseByQueue parses a setting such as "wechat=5s;*=0". bareQueue is the queue of a value without "queue=" before it;
// if bareQueue is "", such a value is an error. Each error begins with rule, which says what is accepted.
func parseByQueue[V any](text, bareQueue, rule string, parse func(value string) (V, error)) (map[string]V, error) {
	byQueue := map[string]V{}
	for part := range strings.SplitSeq(text, ";") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		queue, value, named := strings.Cut(part, "=")
		if queue = strings.TrimSpace(queue); !named {
			queue, value = bareQueue, part
		}
		if _, twice := byQueue[queue]; twice {
			return nil, fmt.Errorf("%s; %q is set twice", rule, queue)
		}
		if queue != otherQueues && !ValidQueue(queue) {
			return nil, fmt.Errorf("%s; %q has no valid queue name", rule, strings.TrimSpace(part))
		}
		v, err := parse(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("%s; %w", rule, err)
		}
		byQueue[queue] = v
	}
	return byQueue, nil
}

// ofQueue returns the value of a queue, or that of otherQueues if the queue has none.
func ofQueue[V any](byQueue map[string]V, queue string) V {
	if value, own := byQueue[queue]; own {
		return value
	}
	return byQueue[otherQueues]
}
