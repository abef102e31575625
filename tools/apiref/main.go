// Command apiref writes docs/reference-api.md from the contract: every service, RPC with its REST routes, message, field and enum with
// the comments of proto/. It reads a FileDescriptorSet with source info on its standard input and writes to its standard output:
//
//	buf build -o -#format=binpb --as-file-descriptor-set | apiref
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

func main() {
	raw, err := io.ReadAll(os.Stdin)
	if err == nil {
		var text []byte
		if text, err = reference(raw); err == nil {
			_, err = os.Stdout.Write(text)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "apiref:", err)
		os.Exit(1)
	}
}

const intro = `# API reference

Generated from [proto/](../proto) by ` + "`make docs`" + `; do not edit. [api.md](api.md) explains how the parts work together, what errors look like and how a
message is written as JSON. The wire between the routers of a fleet (kvpilot.peer.v1) is not here: [fleet.md](fleet.md).

`

// reference is the page of the package kvpilot.v1 in a serialised FileDescriptorSet.
func reference(raw []byte) ([]byte, error) {
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(raw, &set); err != nil {
		return nil, fmt.Errorf("read the descriptors: %w", err)
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return nil, fmt.Errorf("link the descriptors: %w", err)
	}
	var ours []protoreflect.FileDescriptor
	files.RangeFilesByPackage("kvpilot.v1", func(f protoreflect.FileDescriptor) bool {
		ours = append(ours, f)
		return true
	})
	if len(ours) == 0 {
		return nil, fmt.Errorf("no file of the package kvpilot.v1 among %d", files.NumFiles())
	}
	slices.SortFunc(ours, func(a, b protoreflect.FileDescriptor) int { return cmp.Compare(a.Path(), b.Path()) })
	p := page{known: map[protoreflect.FullName]bool{}}
	for _, f := range ours {
		p.learn(f.Messages(), f.Enums())
	}
	p.WriteString(intro)
	for _, f := range ours {
		for i := range f.Services().Len() {
			p.service(f.Services().Get(i))
		}
	}
	p.WriteString("## Messages\n\n")
	for _, f := range ours {
		p.messages(f.Messages())
	}
	p.WriteString("## Enums\n\n")
	for _, f := range ours {
		p.enums(f.Messages(), f.Enums())
	}
	return bytes.TrimRight(p.Bytes(), "\n \t"), nil
}

// page is the text so far.
type page struct {
	bytes.Buffer
	known map[protoreflect.FullName]bool // names with a heading here
}

func (p *page) learn(messages protoreflect.MessageDescriptors, enums protoreflect.EnumDescriptors) {
	for i := range enums.Len() {
		p.known[enums.Get(i).FullName()] = true
	}
	for i := range messages.Len() {
		m := messages.Get(i)
		p.known[m.FullName()] = m.Fields().Len() > 0
		p.learn(m.Messages(), m.Enums())
	}
}

func (p *page) service(s protoreflect.ServiceDescriptor) {
	fmt.Fprintf(p, "## %s\n\n%s\n\n", s.Name(), comment(s, "\n"))
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		p.WriteString("- ")
		if list := routes(m); list != "" {
			p.WriteString(list + ": ")
		}
		p.WriteString(begun(string(m.Name()), comment(m, " ")))
		if !m.IsStreamingClient() && m.Input().FullName() == body && m.Output().FullName() == body {
			p.WriteByte('\n')
			continue
		}
		fmt.Fprintf(p, " %s → %s\n", p.streamed(m.IsStreamingClient(), m.Input()), p.streamed(m.IsStreamingServer(), m.Output()))
	}
	p.WriteByte('\n')
}

// body is the message of the RPCs that forward bodies, which their service's comment describes.
const body = "google.api.HttpBody"

// begun is a comment that begins with the name of its subject, in bold.
func begun(name, text string) string {
	if rest, ok := strings.CutPrefix(text, name+" "); ok {
		return "**" + name + "** " + rest
	}
	return "**" + name + "**: " + text
}

func (p *page) streamed(many bool, m protoreflect.MessageDescriptor) string {
	if many {
		return "stream of " + p.link(m)
	}
	return p.link(m)
}

// routes are an RPC's REST routes.
func routes(m protoreflect.MethodDescriptor) string {
	rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	var list []string
	for _, r := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
		for verb, path := range map[string]string{"GET": r.GetGet(), "POST": r.GetPost(), "PUT": r.GetPut(), "DELETE": r.GetDelete(), "PATCH": r.GetPatch(), r.GetCustom().GetKind(): r.GetCustom().GetPath()} {
			if path != "" {
				list = append(list, "`"+verb+" "+path+"`")
			}
		}
	}
	return strings.Join(list, ", ")
}

func (p *page) messages(list protoreflect.MessageDescriptors) {
	for i := range list.Len() {
		m := list.Get(i)
		if m.IsMapEntry() {
			continue
		}
		if m.Fields().Len() == 0 {
			continue
		}
		fmt.Fprintf(p, "### %s\n\n", title(m))
		if text := unnamed(m); !isEnvelope(m) || strings.Contains(text, ". ") || strings.Contains(text, "\n") {
			p.WriteString(text + "\n\n")
		}
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			fmt.Fprintf(p, "- `%s` %s: %s\n", f.Name(), p.kind(f), comment(f, " "))
		}
		p.WriteByte('\n')
		p.messages(m.Messages())
	}
}

func (p *page) enums(messages protoreflect.MessageDescriptors, list protoreflect.EnumDescriptors) {
	for i := range list.Len() {
		e := list.Get(i)
		fmt.Fprintf(p, "### %s\n\n%s\n\n", title(e), unnamed(e))
		for i := range e.Values().Len() {
			v := e.Values().Get(i)
			if comment(v, " ") == "Not specified." {
				continue
			}
			fmt.Fprintf(p, "- `%s`: %s\n", v.Name(), comment(v, " "))
		}
		p.WriteByte('\n')
	}
	for i := range messages.Len() {
		p.enums(messages.Get(i).Messages(), messages.Get(i).Enums())
	}
}

// kind is a field's type.
func (p *page) kind(f protoreflect.FieldDescriptor) string {
	one := func(f protoreflect.FieldDescriptor) string {
		switch {
		case f.Message() != nil:
			return p.link(f.Message())
		case f.Enum() != nil:
			return p.link(f.Enum())
		}
		return f.Kind().String()
	}
	text := one(f)
	switch {
	case f.IsMap():
		text = "map of " + one(f.MapKey()) + " to " + one(f.MapValue())
	case f.IsList():
		text = "list of " + text
	}
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		text += ", one of `" + string(o.Name()) + "`"
	} else if f.HasOptionalKeyword() {
		text += ", optional"
	}
	return text
}

// isEnvelope reports whether m is the request or response of an RPC, whose comment says the same as a single sentence about m.
func isEnvelope(m protoreflect.MessageDescriptor) bool {
	name := string(m.Name())
	return strings.HasSuffix(name, "Request") || strings.HasSuffix(name, "Response")
}

// unnamed is the comment of d, whose name is its heading, without "Name is" at its beginning.
func unnamed(d protoreflect.Descriptor) string {
	text := comment(d, "\n")
	for _, verb := range []string{" is ", " are ", " says ", " "} {
		if rest, ok := strings.CutPrefix(text, string(d.Name())+verb); ok {
			return strings.ToUpper(rest[:1]) + rest[1:]
		}
	}
	return text
}

// link leads to d's heading, or names it when it has none here.
func (p *page) link(d protoreflect.Descriptor) string {
	if !p.known[d.FullName()] {
		return title(d)
	}
	name := title(d)
	return "[" + name + "](#" + strings.ToLower(strings.ReplaceAll(name, ".", "")) + ")"
}

// title is a name without its package.
func title(d protoreflect.Descriptor) string {
	return strings.TrimPrefix(string(d.FullName()), "kvpilot.v1.")
}

// comment is the comment of d in proto/, its lines joined by by.
func comment(d protoreflect.Descriptor, by string) string {
	text := d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range lines {
		lines[i] = escape.Replace(strings.TrimSpace(lines[i]))
	}
	return strings.Join(lines, by)
}

// escape keeps names of a comment in angle brackets or with underscores from being taken for markup.
var escape = strings.NewReplacer("<", "&lt;", "{", "&#123;", "}", "&#125;")
