package config

import (
	"strconv"
	"strings"
)

// shownSettings and shownValue bound the list of the settings.
const (
	shownSettings = 100
	shownValue    = 200
)

// InForce lists the settings that differ from the defaults, each as "path=value", secrets starred.
func InForce(c Config) []string {
	changes := Diff(Default(), c)
	list := make([]string, 0, min(len(changes), shownSettings+1))
	for i, change := range changes {
		if i == shownSettings {
			return append(list, "and "+strconv.Itoa(len(changes)-i)+" more")
		}
		value := change.New
		if len(value) > shownValue {
			value = strings.ToValidUTF8(value[:shownValue], "") + "…"
		}
		list = append(list, change.Path+"="+value)
	}
	return list
}
