package link_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// The wire between routers depends on no public message, so that no change of the public contract changes it. Routers of two major wire
// versions never exchange a message but Membership, so a field that is removed leaves no gap: the major version grows.
func TestTheWireStandsAlone(t *testing.T) {
	files := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("kvpilot.peer.v1", func(f protoreflect.FileDescriptor) bool {
		files++
		for i := range f.Imports().Len() {
			if path := f.Imports().Get(i).Path(); strings.HasPrefix(path, "kvpilot/") && !strings.HasPrefix(path, "kvpilot/peer/v1/") {
				t.Errorf("%s imports %s", f.Path(), path)
			}
		}
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			for number := range protoreflect.FieldNumber(m.Fields().Len()) {
				if m.Fields().ByNumber(number+1) == nil {
					t.Errorf("%s has %d fields and none of the number %d", m.FullName(), m.Fields().Len(), number+1)
				}
			}
			if m.ReservedNames().Len()+m.ReservedRanges().Len() > 0 {
				t.Errorf("%s reserves names or numbers", m.FullName())
			}
		}
		return true
	})
	if files == 0 {
		t.Error("the package has no files")
	}
}
