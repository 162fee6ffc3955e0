package torture

import (
	"testing"
	"time"
)

// TestKill9 kills the real program at random moments under load, and in a
// third of them the broker too.
func TestKill9(t *testing.T) {
	worlds(t, "kill -9", 0, [2]int{1, 6}, [2]int{40, 25}, killing)
}

func killing(lives int) plan {
	return plan{sync: "always", lives: lives, strike: func(s *site) error {
		victims := []*machine{&s.gateway}
		switch s.r.IntN(6) {
		case 0:
			victims = []*machine{&s.gateway, &s.broker}
		case 1:
			victims = []*machine{&s.broker, &s.gateway}
		}
		for i, m := range victims {
			if i > 0 {
				time.Sleep(time.Duration(s.r.IntN(20)) * time.Millisecond)
			}
			if err := s.alive(); i == 0 && err != nil {
				return err
			}
			m.kill()
			s.row.Kills++
		}
		return nil
	}}
}
