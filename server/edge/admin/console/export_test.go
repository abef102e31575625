package console

import "time"

func (h *History) Seconds(now time.Time) []Second { return h.lastSeconds(now) }

func (h *History) Hour(now time.Time) (step int, list []Second) { return h.lastHour(now) }

func (h *History) Minute(now time.Time) Minute { return h.lastMinute(now) }
