package deploy

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// podViolations lists how the pods of an object violate the Pod Security Standard "restricted". Either the pod or the
// container must set runAsNonRoot and seccompProfile, not both.
func podViolations(o object) (wrong []string) {
	spec := at(o, "spec", "template", "spec")
	pod := at(spec, "securityContext")
	for _, container := range list(spec, "containers") {
		own := at(container, "securityContext")
		for _, c := range []struct{ field, have, want string }{
			{"runAsNonRoot", text(own, "runAsNonRoot") + text(pod, "runAsNonRoot"), "true"},
			{"seccompProfile", text(own, "seccompProfile", "type") + text(pod, "seccompProfile", "type"), "RuntimeDefault"},
			{"allowPrivilegeEscalation", text(own, "allowPrivilegeEscalation"), "false"},
			{"capabilities", fmt.Sprint(list(own, "capabilities", "add"), list(own, "capabilities", "drop")), "[] [ALL]"},
		} {
			if c.have != c.want {
				wrong = append(wrong, fmt.Sprintf("%s/%s: %s is %q", text(o, "metadata", "name"), text(container, "name"), c.field, c.have))
			}
		}
	}
	return wrong
}

func TestPodsAreRestricted(t *testing.T) {
	t.Parallel()
	for _, dir := range overlays(t) {
		c := render(t, dir)
		require.Equal(t, "restricted", text(c.of("v1 Namespace").named("sendonce"), "metadata", "labels", "pod-security.kubernetes.io/enforce"))
		all := slices.Concat(c.sendonce(), c.of(statefulSet))
		require.Greater(t, len(all), 10)
		for _, o := range all {
			require.Empty(t, podViolations(o), dir)
		}
		spoilt := clone(c.of(statefulSet).named("nats")).(object)
		delete(at(spoilt, "spec", "template", "spec", "containers", 0).(object), "securityContext")
		require.Len(t, podViolations(spoilt), 2, "allowPrivilegeEscalation and capabilities; the pod sets the other two")
	}
}
