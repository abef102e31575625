package router

import (
	"fmt"
	"testing"
)

func TestOnlySoManyModelsHaveLabels(t *testing.T) {
	var p perModel
	if a, again := p.of("a"), p.of("a"); a != again || a.model != "a" {
		t.Errorf("model a has the labels of %q, and others the next time", a.model)
	}
	for i := range 2 * mostModels {
		p.of(fmt.Sprint("adapter-", i))
	}
	if got := p.of("one more").model; got != otherModel {
		t.Errorf("the label of one more model is %q, want %q", got, otherModel)
	}
	if got := p.of("a").model; got != "a" {
		t.Errorf("model a is now %q", got)
	}
	if n := p.count.Load(); n > mostModels+1 {
		t.Errorf("%d models have labels", n)
	}
}

func TestTheFirstModelsHaveHistograms(t *testing.T) {
	var p perModel
	p.of(otherModel)
	for i := range mostTimed {
		if m := p.of(fmt.Sprint("model-", i)); m.timed != m {
			t.Errorf("model %d shares its histograms with %q", i, m.timed.model)
		}
	}
	late := p.of("late")
	if late.model != "late" || late.timed != p.of(otherModel) {
		t.Errorf("a later model counts as %q and is timed as %q, want late and %q", late.model, late.timed.model, otherModel)
	}
}
