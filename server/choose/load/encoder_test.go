package load_test

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"
)

// encoder writes labels as {a=1,b=2}, and nothing when there are none.
type encoder struct{}

func (encoder) ID() attribute.EncoderID { return attribute.NewEncoderID() }

func (encoder) Encode(labels attribute.Iterator) string {
	var list []string
	for labels.Next() {
		l := labels.Attribute()
		list = append(list, string(l.Key)+"="+l.Value.String())
	}
	if len(list) == 0 {
		return ""
	}
	return "{" + strings.Join(list, ",") + "}"
}
