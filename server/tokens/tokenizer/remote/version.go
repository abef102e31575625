package remote

import "strconv"

// version is a vLLM release: 0.24.1 is {0, 24, 1}. The zero value is unknown.
type version struct{ major, minor, patch int }

// parseVersion reads the leading numbers of a version string and ignores suffixes.
func parseVersion(s string) version {
	var parts [3]int
	for i := range parts {
		end := 0
		for end < len(s) && s[end] >= '0' && s[end] <= '9' {
			end++
		}
		n, err := strconv.Atoi(s[:end])
		if err != nil {
			break
		}
		parts[i] = n
		if end == len(s) || s[end] != '.' {
			break
		}
		s = s[end+1:]
	}
	return version{parts[0], parts[1], parts[2]}
}

func (v version) known() bool { return v != version{} }

// atLeast reports whether v is known and not older than major.minor.
func (v version) atLeast(major, minor int) bool {
	return v.known() && (v.major > major || (v.major == major && v.minor >= minor))
}

// before reports whether v is known and older than major.minor.
func (v version) before(major, minor int) bool { return v.known() && !v.atLeast(major, minor) }
