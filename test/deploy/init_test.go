package deploy

import (
	"os/exec"
	"testing"
)

func TestWhatInitWritesIsValid(t *testing.T) {
	image := []string{"--image", "registry.example.com/kvpilot:v0.1.0"}
	for name, args := range map[string][]string{
		"defaults":         {"--model", "Qwen/Qwen3-8B"},
		"everything":       {"--model", "Qwen/Qwen3-32B", "--engines", "4", "--gpus", "2", "--cache-size", "100Gi", "--hf-token-secret", "hf", "--vllm-arg=--max-model-len=32768", "--routers", "5"},
		"one router":       {"--model", "Qwen/Qwen3-0.6B", "--gpus", "0", "--engines", "1", "--routers", "1"},
		"existing engines": {"--service", "engines", "--service-port", "8000"},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := exec.CommandContext(t.Context(), program(t), append(append([]string{"init", "--kubernetes", "--out", "-"}, image...), args...)...).Output()
			if err != nil {
				t.Fatal(err)
			}
			o := read(t, text)
			o.consistent(t)
			o.accepted(t)
		})
	}
}
