package torture

import (
	"testing"
)

// TestPowerCuts cuts the power of the real program, of the broker, or of both.
// Each has an ext4 file system of its own, which forgets all that was not synced.
func TestPowerCuts(t *testing.T) {
	worlds(t, "Real power cuts", 100, [2]int{1, 6}, [2]int{10, 20}, func(lives int) plan { return cutting(lives, "always") })
}

// TestPowerCuts_ForgetfulBroker cuts the power of a broker with the default
// sync_interval. It loses messages that it had confirmed, and gives their
// sequences to others; what it still has is applied, once.
func TestPowerCuts_ForgetfulBroker(t *testing.T) {
	worlds(t, "Power cuts of a broker that syncs every two minutes", 200, [2]int{1, 3}, [2]int{2, 20}, func(lives int) plan { return cutting(lives, "default") })
}

func cutting(lives int, sync string) plan {
	return plan{disks: true, sync: sync, lives: lives, strike: func(s *site) error {
		if err := s.alive(); err != nil {
			return err
		}
		victims := [][]*machine{{&s.gateway}, {&s.broker}, {&s.gateway, &s.broker}, {&s.broker, &s.gateway}}[s.r.IntN(4)]
		for _, m := range victims {
			m.kill()
		}
		for _, m := range victims {
			if err := m.cut(); err != nil {
				return err
			}
			s.row.Cuts++
		}
		return nil
	}}
}
