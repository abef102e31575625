package check

import (
	"errors"
	"testing"
	"time"
)

func TestErrorsNameTheSettingAndWhatItMustBe(t *testing.T) {
	for want, err := range map[string]error{
		"a: must be at least 1, not 0":             AtLeast("a", 0, 1),
		"a: must be from 0 to 1, not 1.5":          Between("a", 1.5, 0, 1),
		"a: must be positive, not -1s":             Positive("a", -time.Second),
		"a: must not be empty":                     NotEmpty("a", ""),
		`a: must be one of x, y, nothing, not "z"`: OneOf("a", "z", "x", "y", ""),
		`a: must be host:port, not "unix:/run/a.sock": Unix sockets are not supported`: Address("a", "unix:/run/a.sock"),
		`a: must be host:port, not "/run/a.sock": Unix sockets are not supported`:      Address("a", "/run/a.sock"),
		`a: must be host:port without a scheme, not "http://127.0.0.1:80"`:             Address("a", "http://127.0.0.1:80"),
		`a: must be host:port, not "localhost"`:                                        Address("a", "localhost"),
		`a: must have a port from 0 to 65535, not "localhost:65536"`:                   Address("a", "localhost:65536"),
		`a: must have a port from 0 to 65535, not "localhost:no-such"`:                 Address("a", "localhost:no-such"),
		"b.a: must not be empty\nb.c: must be odd":                                     Within("b", errors.Join(NotEmpty("a", ""), That(false, "c", "must be odd"))),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for i, err := range []error{AtLeast("a", 1, 1), Between("a", 1, 0, 1), Positive("a", 1), NotEmpty("a", "x"), OneOf("a", "x", "x"), Within("b", nil), Address("a", ":0"), Address("a", "[::1]:80"), Address("a", "localhost:http")} {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}
