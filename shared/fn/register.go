package fn

import (
	"github.com/GoogleCloudPlatform/functions-framework-go/functions"
)

// Register gives each function to the functions framework under its name, for
// a process that some framework host starts. Call it once per process: the
// framework ends the process over a name that it knows already.
func Register(env *Env, fns ...Function) error {
	all, err := construct(env, fns)
	if err != nil {
		return err
	}
	for _, f := range all {
		s, err := newSite(env, []built{f})
		if err != nil {
			return err
		}
		functions.HTTP(f.name, s.ServeHTTP)
	}
	return nil
}
