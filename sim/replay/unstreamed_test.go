package replay

import (
	"fmt"
	"testing"
)

func TestDebugRates(t *testing.T) {
	for _, name := range []string{"conv", "hotdoc", "synth"} {
		for _, speed := range []float64{0.25, 1, 4} {
			trace := generated(t, name, 1500)
			rate := map[string]float64{"conv": 1.4, "hotdoc": 1.8, "synth": 2.6}[name] * speed
			s, v := session(t, trace, rate, Options{Replicas: 4, Answers: Answers{Whole: true}, Speeds: []float64{speed}})
			for _, at := range []float64{30, 120, 300, 600} {
				s.after(at/speed, func() {
					fmt.Printf("%s x%v at %v:", name, speed, at)
					for _, r := range v.routers[0].chooser.Rates() {
						fmt.Printf("  %.2f %.2f %s %d", r.TokensPerSecond/8000/speed, r.StepTime*1000*speed/10, r.Source, r.Samples)
					}
					fmt.Println()
				})
			}
			s.run(0)
		}
	}
}
