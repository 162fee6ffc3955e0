package inbox

import (
	"fmt"
	"math"
	"time"
)

// A RetryPolicy says when a failed message is tried again, and when it is
// given up. Waiting holds no transaction and no memory. The zero value of a
// field means its default.
type RetryPolicy struct {
	// Initial is the wait after the first failure. Default 1 s.
	Initial time.Duration
	// Multiplier makes each wait longer than the one before. Default 2.
	Multiplier float64
	// Max is the longest wait. Default 1 h.
	Max time.Duration
	// Jitter spreads a wait evenly over ±Jitter of itself, so that what
	// failed together does not come back together. Default 0.2, negative
	// for none.
	Jitter float64
	// MaxAttempts is how many attempts a message has before it is dead.
	// Default 20: with the other defaults about ten hours. Negative: no limit.
	MaxAttempts int
}

func (p *RetryPolicy) setDefaults() error {
	if p.Initial == 0 {
		p.Initial = time.Second
	}
	if p.Multiplier == 0 {
		p.Multiplier = 2
	}
	if p.Max == 0 {
		p.Max = max(time.Hour, p.Initial)
	}
	if p.Jitter == 0 {
		p.Jitter = 0.2
	}
	if p.MaxAttempts == 0 {
		p.MaxAttempts = 20
	}
	switch {
	case p.Initial < time.Millisecond:
		return fmt.Errorf("RetryPolicy.Initial is %v: at least 1ms", p.Initial)
	case p.Max < p.Initial:
		return fmt.Errorf("RetryPolicy.Max (%v) is below Initial (%v)", p.Max, p.Initial)
	case p.Multiplier < 1 || math.IsNaN(p.Multiplier) || math.IsInf(p.Multiplier, 0):
		return fmt.Errorf("RetryPolicy.Multiplier is %v: at least 1", p.Multiplier)
	case p.Jitter > 1 || math.IsNaN(p.Jitter):
		return fmt.Errorf("RetryPolicy.Jitter is %v: at most 1", p.Jitter)
	}
	return nil
}

// delay is the wait after so many failures in a row (1 for the first). rnd is
// in [0, 1).
func (p RetryPolicy) delay(failures int64, rnd float64) time.Duration {
	d := float64(p.Initial) * math.Pow(p.Multiplier, float64(failures-1))
	if !(d < float64(p.Max)) { // also when it overflowed
		d = float64(p.Max)
	}
	if p.Jitter > 0 {
		d *= 1 + p.Jitter*(2*rnd-1)
	}
	return max(time.Duration(d), time.Millisecond)
}

// decide says what becomes of a message whose attempt failed with err.
// attempts and failures are those before it.
func (p RetryPolicy) decide(attempts, failures int64, err error, now int64, rnd float64) failure {
	v := verdictOf(err)
	f := failure{status: statusPending, attempts: attempts + 1, failures: failures + 1, text: errorText(err)}
	if v.outage {
		f.attempts = attempts
	}
	if v.permanent || p.MaxAttempts > 0 && f.attempts >= int64(p.MaxAttempts) && !v.outage {
		f.status, f.processedAt = statusDead, now
		return f
	}
	wait := p.delay(f.failures, rnd)
	if v.hasAfter {
		wait = v.after
	}
	ms := (wait + time.Millisecond - 1).Milliseconds()
	f.nextAt, f.delay = now+ms, ms
	return f
}

// maxErrorText bounds what is kept of an error, in bytes.
const maxErrorText = 4096

func errorText(err error) string {
	s := err.Error()
	if len(s) > maxErrorText {
		s = s[:maxErrorText] + "…"
	}
	return s
}
