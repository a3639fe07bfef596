package fn

// Patterns gives every pattern that the functions answer, with the roles of which
// its callers need one. It fails as Handler does.
func Patterns(env *Env, functions ...Function) (map[string][]Role, error) {
	built, err := construct(env, functions)
	if err != nil {
		return nil, err
	}
	roles := map[string][]Role{}
	for _, f := range built {
		for pattern, route := range f.routes {
			roles[pattern] = route.roles
		}
	}
	return roles, nil
}
