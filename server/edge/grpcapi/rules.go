package grpcapi

import (
	"context"
	"errors"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// rules are those that the contract has for messages.
type rules struct {
	validator protovalidate.Validator
	metrics   *metrics
}

// check returns all that a message breaks.
func (r rules) check(msg proto.Message) error {
	err := r.validator.Validate(msg)
	if err == nil {
		return nil
	}
	r.metrics.refused.Add(context.Background(), 1, r.metrics.brokenRules)
	broken, ok := errors.AsType[*protovalidate.ValidationError](err)
	if !ok || len(broken.Violations) == 0 {
		return err
	}
	list := make([]apierror.Violation, len(broken.Violations))
	for i, v := range broken.Violations {
		list[i] = apierror.Violation{Field: protovalidate.FieldPathString(v.Proto.GetField()), Description: v.Proto.GetMessage()}
	}
	return apierror.Violated(list, err)
}
