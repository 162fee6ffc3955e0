package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A site is a gateway, the real program, and a broker, a real nats-server:
// processes that die all the time while traffic goes through them.
type site struct {
	t       *testing.T
	row     *Row
	r       *rand.Rand
	plan    plan
	bin     string
	addr    string // of the broker
	gateway machine
	broker  machine
	traffic *traffic
}

// A plan says what happens to a site.
type plan struct {
	disks bool   // of their own, so that power can be cut
	sync  string // the broker's: "always", or "default", with which a power cut takes what it has confirmed
	lives int
	// strike lets something die, so that it can be started again.
	strike func(*site) error
}

// The handler's table knows nothing of the inbox, and would take everything twice.
const siteMigration = `
CREATE TABLE effect (
    n    INTEGER PRIMARY KEY,
    id   TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind <> 'bad'),
    body BLOB NOT NULL
);`

const siteConfig = `
database: {path: %q, min_free: 0}
nats: {url: "nats://%s"}
migrations: migrations
http: {listen: "off"}
log: {format: text}
consumers:
  - name: c
    stream: LAB
    create_stream: {subjects: ["lab.>"]}
    key: {json: $.key}
    dead_passes: true
    ack_wait: 300ms
    retry: {initial: 5ms, multiplier: 1, jitter: 0, attempts: 6}
    permanent_if: [check]
    sql:
      - INSERT INTO effect (id, kind, body) VALUES (:id, :data ->> '$.kind', CAST(:data AS BLOB))
      - when: ":data ->> '$.kind' = 'flaky' AND :attempt < 3"
        sql: INSERT INTO effect (id) VALUES (NULL)
`

// worlds torments as many sites, for as many lives each, as the form says: short
// or long. first numbers them, so that each test has random choices of its own.
func worlds(t *testing.T, part string, first uint64, brief, full [2]int, of func(lives int) plan) {
	seeded(t)
	row := row(t, part)
	bin := consumerBinary(t)
	form := brief
	if *long {
		form = full
	}
	for world := range form[0] {
		require.NoError(t, torment(t, row, bin, first+uint64(world), of(form[1])))
	}
}

// torment runs a site through its lives. The error says what was promised and
// is not so; the figures go into row.
func torment(t *testing.T, row *Row, bin string, world uint64, p plan) (err error) {
	s := newSite(t, row, bin, world, p)
	defer func() {
		s.gateway.kill()
		s.broker.kill()
		if err != nil {
			err = fmt.Errorf("-seed %d, world %d: %w\n%s\n%s", *seed, world, err, s.broker.lastWords(), s.gateway.lastWords())
		}
	}()
	for life := range p.lives {
		err := s.awaken()
		if err == nil {
			err = s.work()
		}
		if err == nil {
			err = p.strike(s)
		}
		if err == nil && !s.gateway.running() {
			err = s.look(false)
		}
		if err != nil {
			return fmt.Errorf("life %d: %w", life, err)
		}
	}
	return s.end()
}

func newSite(t *testing.T, row *Row, bin string, world uint64, p plan) *site {
	dir := scratch(t)
	s := &site{t: t, row: row, r: rand.New(rand.NewPCG(*seed, 2*world)), plan: p, bin: bin,
		addr: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	for _, m := range []*machine{&s.gateway, &s.broker} {
		m.name = map[*machine]string{&s.gateway: "gateway", &s.broker: "broker"}[m]
		m.dir = filepath.Join(dir, m.name)
		m.log = m.dir + ".log"
		if p.disks {
			var err error
			m.disk, err = newDisk(t, m.dir)
			if err != nil {
				row.skip(t, err.Error())
			}
		} else {
			require.NoError(t, os.Mkdir(m.dir, 0o700))
		}
		t.Cleanup(m.kill)
	}
	etc := filepath.Join(dir, "etc") // written once, long ago: it is not on the disk
	config := filepath.Join(etc, "edge.yaml")
	require.NoError(t, os.MkdirAll(filepath.Join(etc, "migrations"), 0o700))
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, siteConfig, path(s.gateway.dir), s.addr), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(etc, "migrations", "0001_effect.sql"), []byte(siteMigration), 0o600))
	s.gateway.command = func() *exec.Cmd { return s.program("run", "-c", config) }
	s.broker.command = func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		_, port, _ := net.SplitHostPort(s.addr)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", brokerEnv, port, p.sync, filepath.Join(s.broker.dir, "store")))
		return cmd
	}
	s.traffic = newTraffic(t, "nats://"+s.addr, rand.New(rand.NewPCG(*seed, 2*world+1)))
	return s
}

// program is the real one, which does not read the developer's own settings.
func (s *site) program(args ...string) *exec.Cmd {
	cmd := exec.Command(s.bin, args...)
	cmd.Env = []string{"HOME=" + s.gateway.dir}
	return cmd
}

// awaken starts what is not running, mostly the broker first.
func (s *site) awaken() error {
	order := []*machine{&s.broker, &s.gateway}
	if s.r.IntN(4) == 0 {
		order = []*machine{&s.gateway, &s.broker}
	}
	for _, m := range order {
		if m.running() {
			continue
		}
		if err := m.start(); err != nil {
			return err
		}
	}
	return s.until("the broker accepts connections", func() bool {
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// until waits for something that must come, as long as both processes live.
func (s *site) until(what string, done func() bool) error {
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(2 * time.Millisecond) {
		if err := s.alive(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("never: " + what)
		}
	}
	return nil
}

// alive: neither has ended by itself.
func (s *site) alive() error {
	for _, m := range []*machine{&s.gateway, &s.broker} {
		if !m.running() {
			return fmt.Errorf("the %s has ended by itself", m.name)
		}
	}
	return nil
}

// work lets the site work for a while, of random length: until so many
// acknowledgements were heard, or, for what happens at a start, for a moment.
func (s *site) work() error {
	if s.r.IntN(4) == 0 {
		time.Sleep(time.Duration(s.r.IntN(250)) * time.Millisecond)
		return nil
	}
	before, want := s.traffic.heard(), 1+s.r.IntN(400)
	err := s.until(fmt.Sprintf("%d messages are acknowledged", want), func() bool { return s.traffic.heard() >= before+want })
	if err == nil && s.r.IntN(4) == 0 {
		checkpoint(s.t, path(s.gateway.dir), "PASSIVE")
	}
	time.Sleep(time.Duration(s.r.IntN(3000)) * time.Microsecond)
	return err
}

// end lets the site work off everything, ends it cleanly and looks at what it
// leaves.
func (s *site) end() error {
	if err := s.awaken(); err != nil {
		return err
	}
	if err := s.traffic.stop(); err != nil {
		return err
	}
	standing := ""
	if err := s.until("everything is taken", func() (done bool) {
		done, standing = s.traffic.drained()
		return done
	}); err != nil {
		return fmt.Errorf("%w: %s", err, standing)
	}
	db, err := openSite(path(s.gateway.dir))
	if err != nil {
		return err
	}
	defer db.Close()
	if err := s.until("everything is applied", func() bool {
		var open int
		err := db.QueryRowContext(context.Background(), `SELECT count(*) FROM inbox_message WHERE status IN (1, 2)`).Scan(&open)
		return err == nil && open == 0
	}); err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	if out, err := s.program("audit", "--db", path(s.gateway.dir), "--nats", "nats://"+s.addr).CombinedOutput(); err != nil {
		return fmt.Errorf("audit: %w\n%s", err, out)
	}
	if err := s.gateway.terminate(); err != nil {
		return err
	}
	if _, err := os.Stat(path(s.gateway.dir) + "-wal"); err == nil {
		return errors.New("a -wal is left after a clean end")
	}
	if err := s.look(true); err != nil {
		return err
	}
	alert, err := s.alerted("missing")
	if err == nil && alert && s.plan.sync == "always" {
		s.row.Lost++
		err = errors.New("the gateway found that it had acknowledged what it did not have")
	}
	return err
}

// alerted: the gateway has raised an alert of a kind that begins so.
func (s *site) alerted(kind string) (bool, error) {
	log, err := os.ReadFile(s.gateway.log)
	return strings.Contains(string(log), "alert="+kind), err
}
