package replay

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Wave has the arrival rate rise and fall like a day's, around the rate of the load. The zero value has it even.
type Wave struct {
	// Period is the time in seconds from one trough to the next; runs begin in a trough.
	Period float64
	// Low is the rate in a trough as a share of the rate at a peak, from 0 to 1.
	Low float64
}

// ParseWave reads a wave in the form period:low, for example 20m:0.1.
func ParseWave(text string) (Wave, error) {
	period, low, _ := strings.Cut(text, ":")
	d, err := time.ParseDuration(period)
	share, err2 := strconv.ParseFloat(low, 64)
	if err != nil || err2 != nil || d <= 0 || !(share >= 0 && share <= 1) {
		return Wave{}, fmt.Errorf("%q must be period:low, for example 20m:0.1 for a trough with a tenth of the peak's rate every 20 minutes", text)
	}
	return Wave{Period: d.Seconds(), Low: share}, nil
}

// warp returns when a call arrives that would arrive at a moment under an even rate.
func (w Wave) warp(at float64) float64 {
	if w.Period <= 0 {
		return at
	}
	// With the rate 1 - depth*cos(2*pi*t/period), the calls until t are those of an even rate until t - most*sin(2*pi*t/period).
	depth := (1 - w.Low) / (1 + w.Low)
	most := depth * w.Period / (2 * math.Pi)
	low, high := at-most, at+most
	for range 60 {
		t := (low + high) / 2
		if t-most*math.Sin(2*math.Pi*t/w.Period) < at {
			low = t
		} else {
			high = t
		}
	}
	return max(0, high)
}
