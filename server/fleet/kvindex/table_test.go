package kvindex

import "testing"

// A small table may come to have the same passed mark in all its buckets; a search for what is
// not there must end all the same.
func TestASearchEndsWhenAllBucketsWerePassed(t *testing.T) {
	const class = 3
	t.Run("blocks", func(t *testing.T) {
		tab := &table{buckets: minBuckets, slots: make([]uint64, minBuckets*bucketSlots)}
		tag := func(home, n uint64) uint64 { return home<<63 | n<<(tagShift+3) | class<<tagShift }
		marks := 0
		put := func(tag uint64) {
			slot, set := tab.free(tag)
			*slot, marks = tag|*slot&passed|1, marks+set
		}
		for n := range uint64(bucketSlots + 1) { // one lies past bucket 0
			put(tag(0, n))
		}
		for n := range uint64(bucketSlots - 1) {
			put(tag(1, n))
		}
		*tab.find(tag(0, 0)) &^= idMask // and one past bucket 1
		put(tag(1, 50))
		if marks != minBuckets {
			t.Fatalf("%d marks, want one in each bucket", marks)
		}
		for home := range uint64(minBuckets) {
			if tab.find(tag(home, 999)) != nil || tab.get(tag(home, 999)) != 0 {
				t.Errorf("home %d: found what is not there", home)
			}
		}
		if tab.get(tag(1, 50)) != 1 {
			t.Error("what is there is not found")
		}
	})
	t.Run("names", func(t *testing.T) {
		m := &revmap{buckets: minBuckets, words: make([]uint64, minBuckets*revBucket), limit: minBuckets * bucketSlots}
		id := func(home, n uint64) uint64 { return home<<63 | n<<11 | class<<8 }
		for n := range uint64(bucketSlots + 1) { // one lies past bucket 0
			m.put(id(0, n), 1, n)
		}
		for n := range uint64(bucketSlots - 1) {
			m.put(id(1, n), 1, n)
		}
		name, _ := m.find(id(0, 0))
		*name &^= refCount // and one past bucket 1
		m.live--
		m.put(id(1, 50), 1, 50)
		if m.marks != minBuckets {
			t.Fatalf("%d marks, want one in each bucket", m.marks)
		}
		for home := range uint64(minBuckets) {
			if _, ok := m.get(id(home, 999)); ok {
				t.Errorf("home %d: found what is not there", home)
			}
		}
		if key, ok := m.get(id(1, 50)); !ok || key != 50 {
			t.Error("what is there is not found")
		}
	})
}
