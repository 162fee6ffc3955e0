package torture

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A machine is a process, and the folder that outlives it.
type machine struct {
	name    string
	dir     string
	disk    *loopDisk // nil: its power cannot be cut
	command func() *exec.Cmd
	log     string // the file that gets what the process says

	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended; nil: none was started
}

// start starts the process; it dies with this one.
func (m *machine) start() error {
	log, err := os.OpenFile(m.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	m.cmd = m.command()
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	m.ended = ended
	go func() { _ = m.cmd.Wait(); close(ended) }()
	return nil
}

func (m *machine) running() bool {
	if m.ended == nil {
		return false
	}
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// kill is kill -9.
func (m *machine) kill() {
	if m.ended != nil {
		_ = m.cmd.Process.Kill()
		<-m.ended
		m.ended = nil
	}
}

// cut cuts the power: the process is gone, and of its files what had not been
// synced. The process is killed first: a file system that is shut down under an
// fsync may answer that all went well, where a real power cut answers nothing.
func (m *machine) cut() error {
	m.kill()
	if err := m.disk.cut(); err != nil {
		return err
	}
	if err := m.disk.unmount(); err != nil {
		return err
	}
	return m.disk.mount()
}

// terminate ends the process as an operator does.
func (m *machine) terminate() error {
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-m.ended:
	case <-time.After(time.Minute):
		return fmt.Errorf("the %s does not end at SIGTERM", m.name)
	}
	m.ended = nil
	if code := m.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the %s ended with exit status %d", m.name, code)
	}
	return nil
}

// lastWords are the end of its log, without what is said of single messages.
func (m *machine) lastWords() string {
	b, _ := os.ReadFile(m.log)
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(b)), "\n"), func(line string) bool {
		return strings.Contains(line, "message_id=")
	})
	return m.name + ":\n" + strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// A loopDisk is an ext4 file system in a file.
type loopDisk struct{ image, dir string }

// newDisk makes one, mounted on dir. The error says why that cannot be here.
func newDisk(t *testing.T, dir string) (*loopDisk, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("mounting needs root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return nil, err
	}
	d := &loopDisk{dir + ".img", dir}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(d.image, 1<<30); err != nil { // as far as it is used
		return nil, err
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", d.image).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.ext4: %w %s", err, out)
	}
	if err := d.mount(); err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return d, nil
}

func (d *loopDisk) mount() error {
	if out, err := exec.Command("mount", "-o", "loop", d.image, d.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w %s", err, out)
	}
	return nil
}

func (d *loopDisk) unmount() error {
	if err := unix.Unmount(d.dir, 0); err != nil {
		return fmt.Errorf("unmount %s: %w", d.dir, err)
	}
	return nil
}

// cut is the ioctl that file systems have for such tests: nothing that waits in
// memory is written any more, not even the journal.
func (d *loopDisk) cut() error {
	const shutdown, noLogFlush = 0x8004587d, 2 // EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), shutdown, noLogFlush); err != nil {
		return fmt.Errorf("EXT4_IOC_SHUTDOWN: %w", err)
	}
	return nil
}

// theBinary builds the real program, once for all tests.
var theBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "torture-")
	if err != nil {
		return "", err
	}
	atExit = append(atExit, func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "edge-consumer")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, "../../cmd/edge-consumer").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return bin, nil
})

func consumerBinary(t *testing.T) string {
	t.Helper()
	bin, err := theBinary()
	require.NoError(t, err)
	return bin
}

// brokerEnv makes of this test binary a nats-server: "PORT SYNC DIR".
const brokerEnv = "TORTURE_BROKER"

func init() {
	if spec := os.Getenv(brokerEnv); spec != "" {
		fmt.Fprintln(os.Stderr, serve(spec))
		os.Exit(1)
	}
}

func serve(spec string) error {
	opts := &server.Options{Host: "127.0.0.1", JetStream: true, JetStreamMaxStore: 1 << 40, JetStreamMaxMemory: 1 << 30}
	var sync string
	if _, err := fmt.Sscanf(spec, "%d %s %s", &opts.Port, &sync, &opts.StoreDir); err != nil {
		return err
	}
	opts.SyncAlways = sync == "always"
	srv, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	srv.ConfigureLogger()
	srv.Start()
	srv.WaitForShutdown()
	return errors.New("the server has shut down")
}

// freePort is one that nobody listens on.
func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
