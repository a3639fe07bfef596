package task

// ValidName tells whether a queue's or a caller's name is 1 to limit of the
// characters A-Z a-z 0-9 . _ - and can be a part of a path, as . and .. cannot.
func ValidName(name string, limit int) bool {
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return len(name) >= 1 && len(name) <= limit && name != "." && name != ".."
}
