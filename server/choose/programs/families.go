package programs

import "time"

const (
	// maxFamilies bounds each of the two generations of families. The older half is forgotten when there are many.
	maxFamilies = 1 << 12
	// knownFrom is the number of sessions from which a family is known. Before, its sessions are like all others of their class.
	knownFrom = 4
)

// family is the sessions of a class whose prompts begin alike: the sessions of one application, which puts its instructions first. A tenant
// may have chats and agents.
type family struct {
	*class
	sessions int
}

type familyKey struct {
	class string
	head  uint64
}

// families finds families by their beginnings.
type families struct{ young, old map[familyKey]*family }

// of returns the family of a call, which is made when there is none; nil for a call without a known beginning.
func (f *families) of(call *Call) *family {
	if call.Head == 0 {
		return nil
	}
	key := familyKey{call.Class, call.Head}
	one := f.young[key]
	if one == nil {
		if one = f.old[key]; one == nil {
			one = &family{class: newClass()}
		}
		if f.young == nil || len(f.young) >= maxFamilies {
			f.old, f.young = f.young, map[familyKey]*family{}
		}
		f.young[key] = one
	}
	return one
}

// kin is the knowledge about the sessions that are like one: the sessions of its family, or else of its class without a known family.
type kin struct {
	others *class
	family *family
}

// class is the knowledge about them.
func (k *kin) class() *class {
	if k.family != nil && k.family.sessions >= knownFrom {
		return k.family.class
	}
	return k.others
}

// learn learns the length of a gap.
func (k *kin) learn(gap, horizon time.Duration) {
	if k.family != nil {
		k.family.learn(gap, horizon)
	}
	if c := k.class(); c == k.others {
		c.learn(gap, horizon)
	}
}

// judge learns the outcome of one call.
func (k *kin) judge(quick bool) {
	if k.family != nil {
		k.family.judge(quick)
	}
	if c := k.class(); c == k.others {
		c.judge(quick)
	}
}
