package main

import (
	"encoding/json"
	"os"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	predicateType = "https://slsa.dev/provenance/v1"
	buildType     = repositoryURL + "/tools/release@v1"
	// localBuilder is a machine about which nothing is known.
	localBuilder = repositoryURL + "/tools/release@local"
)

// writeProvenance writes an in-toto statement, unsigned: the sources of the files so far, and the build. It has no times, as
// it must be the same for equal builds.
func writeProvenance(name string, p params, src source, r *result) error {
	statement := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: predicateType}
	for _, f := range r.files {
		statement.Subject = append(statement.Subject, &intoto.ResourceDescriptor{Name: f.name, Digest: map[string]string{"sha256": f.sha256}})
	}
	for _, i := range r.images {
		statement.Subject = append(statement.Subject, &intoto.ResourceDescriptor{Name: i.name, Digest: map[string]string{"sha256": i.sha256}, MediaType: string(i.media)})
	}
	external, err := structpb.NewStruct(map[string]any{"version": p.version, "commit": src.commit, "platforms": list(p.platforms)})
	if err != nil {
		return err
	}
	internal, err := structpb.NewStruct(map[string]any{"go": toolchain, "flags": list(buildFlags)})
	if err != nil {
		return err
	}
	predicate := &slsa.Provenance{
		BuildDefinition: &slsa.BuildDefinition{
			BuildType: buildType, ExternalParameters: external, InternalParameters: internal,
			ResolvedDependencies: []*intoto.ResourceDescriptor{
				{Uri: "git+" + repositoryURL, Digest: map[string]string{"gitCommit": src.commit}},
				{Uri: "pkg:generic/go@" + toolchain[2:]},
			},
		},
		RunDetails: &slsa.RunDetails{Builder: &slsa.Builder{Id: p.builder}},
	}
	if err := predicate.Validate(); err != nil {
		return err
	}
	text, err := protojson.Marshal(predicate)
	if err != nil {
		return err
	}
	statement.Predicate = new(structpb.Struct)
	if err := protojson.Unmarshal(text, statement.Predicate); err != nil {
		return err
	}
	if err := statement.Validate(); err != nil {
		return err
	}
	if text, err = protojson.Marshal(statement); err != nil {
		return err
	}
	// protojson varies its spaces on purpose; encoding/json has one form, with sorted keys.
	var even any
	if err := json.Unmarshal(text, &even); err != nil {
		return err
	}
	if text, err = json.MarshalIndent(even, "", "  "); err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}

func list(words []string) []any {
	all := make([]any, len(words))
	for i, w := range words {
		all[i] = w
	}
	return all
}
