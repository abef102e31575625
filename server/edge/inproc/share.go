package inproc

import (
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// share makes dst the same message as src without copying what is inside: lists, maps, bytes and
// sub-messages belong to both afterwards. Generated code makes this necessary: it receives into
// messages that it has allocated itself.
func share(dst, src any) error {
	if d, ok := dst.(*httpbody.HttpBody); ok {
		if s, ok := src.(*httpbody.HttpBody); ok {
			d.ContentType, d.Data, d.Extensions = s.ContentType, s.Data, s.Extensions
			return nil
		}
	}
	d, ok1 := dst.(proto.Message)
	s, ok2 := src.(proto.Message)
	if !ok1 || !ok2 {
		return typesDiffer(dst, src)
	}
	to, from := d.ProtoReflect(), s.ProtoReflect()
	if to.Descriptor() != from.Descriptor() {
		return typesDiffer(dst, src)
	}
	proto.Reset(d)
	from.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		to.Set(field, value)
		return true
	})
	to.SetUnknown(from.GetUnknown())
	return nil
}

func typesDiffer(dst, src any) error {
	return status.Errorf(codes.Internal, "a message of type %T where %T belongs", src, dst)
}
