package main

import "time"

// A sample is a look at the file, and what changed since the one before.
type sample struct {
	at     time.Time
	report *statusReport
	rates  map[string]rates // by consumer; none at the first look
}

// rates are per second.
type rates struct {
	applied, duplicates, failures float64
}

// next is the sample after s.
func (s *sample) next(at time.Time, report *statusReport) sample {
	n := sample{at, report, map[string]rates{}}
	if s.report == nil {
		return n
	}
	seconds := at.Sub(s.at).Seconds()
	before := map[string]*consumerStatus{}
	for i := range s.report.Consumers {
		before[s.report.Consumers[i].Consumer] = &s.report.Consumers[i]
	}
	for i := range report.Consumers {
		c := &report.Consumers[i]
		b := before[c.Consumer]
		if b == nil {
			b = &consumerStatus{} // it is new: all it has, it got since
		}
		applied, duplicates, failures := c.Applied-b.Applied, c.Duplicates-b.Duplicates, c.Failures-b.Failures
		if seconds <= 0 || applied < 0 || duplicates < 0 || failures < 0 {
			continue // another file is in its place: there is no rate
		}
		n.rates[c.Consumer] = rates{float64(applied) / seconds, float64(duplicates) / seconds, float64(failures) / seconds}
	}
	return n
}
