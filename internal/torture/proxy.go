//go:build linux || darwin

package torture

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A Proxy is the wire between a NATS client and its broker, with all that can
// befall a wire. It moves whole protocol messages, a line and the payload that
// some announce, so that it can lose an acknowledgement and leave the rest of
// the protocol as it is.
type Proxy struct {
	// Delivered is told of each message of a stream on its way to the client:
	// its reply subject, and headers and payload. They are valid during the call.
	Delivered func(reply string, content []byte)
	// Acked is told the subjects of acknowledgements on their way to the broker,
	// also of those that get lost. They wait until it returns.
	Acked func(subjects []string)

	listener net.Listener
	broker   string
	unwanted atomic.Bool  // nobody gets through
	slow     atomic.Int64 // bytes a millisecond, each way; 0: as fast as it goes
	nextAck  atomic.Int64 // counts acknowledgements, for
	loseAcks atomic.Int64 // every n-th acknowledgement is lost; 0: none

	mu     sync.Mutex
	links  map[*link]bool
	closed bool
	work   sync.WaitGroup
}

// NewProxy listens for clients of the broker at host:port.
func NewProxy(broker string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, broker: broker, links: map[*link]bool{}}
	p.work.Go(p.accept)
	return p, nil
}

// URL is where clients connect.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

// Close cuts everything and waits until nothing of the proxy runs.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.listener.Close()
	p.each(true, (*link).cut)
	p.work.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.unwanted.Load() {
			reset(client)
			continue
		}
		broker, err := net.Dial("tcp", p.broker)
		if err != nil {
			client.Close()
			continue
		}
		l := &link{p: p, client: client.(*net.TCPConn), broker: broker.(*net.TCPConn), going: make(chan struct{})}
		close(l.going)
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			l.cut()
			continue
		}
		p.links[l] = true
		p.mu.Unlock()
		p.work.Go(func() {
			var up sync.WaitGroup
			up.Go(func() { l.pump(l.broker, l.client, true) })
			l.pump(l.client, l.broker, false)
			up.Wait()
			l.cut()
			p.mu.Lock()
			delete(p.links, l)
			p.mu.Unlock()
		})
	}
}

// each does something to the connections that clients have; with all, also to
// those that they have given up. It returns how many they were.
func (p *Proxy) each(all bool, do func(*link)) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if all || !l.given.Load() {
			do(l)
			n++
		}
	}
	return n
}

// Cut ends the connections, as either side would.
func (p *Proxy) Cut() int { return p.each(false, (*link).cut) }

// Reset ends them with a TCP RST both ways.
func (p *Proxy) Reset() int {
	return p.each(false, func(l *link) { reset(l.client); reset(l.broker) })
}

// Orphan ends them for the client; for the broker they live on.
func (p *Proxy) Orphan() int {
	return p.each(false, func(l *link) { l.given.Store(true); reset(l.client) })
}

// Silence lets nothing more through, and nobody knows: a half-open connection.
// The broker's half lives on when the client gives its own up.
func (p *Proxy) Silence() int {
	return p.each(false, func(l *link) { l.given.Store(true); l.lostUp.Store(true); l.lostDown.Store(true) })
}

// Mute loses what clients send from now on, on the connections that they have.
func (p *Proxy) Mute() int { return p.each(false, func(l *link) { l.lostUp.Store(true) }) }

// Reap ends what clients have given up and the broker still has.
func (p *Proxy) Reap() int {
	return p.each(true, func(l *link) {
		if l.given.Load() {
			l.cut()
		}
	})
}

// Stall holds up everything until release is called.
func (p *Proxy) Stall() (release func()) {
	going := make(chan struct{})
	p.each(false, func(l *link) {
		l.mu.Lock()
		l.going = going
		l.mu.Unlock()
	})
	return sync.OnceFunc(func() { close(going) })
}

// Unreachable refuses new connections, or no longer.
func (p *Proxy) Unreachable(yes bool) { p.unwanted.Store(yes) }

// Slow limits each connection to so many bytes a millisecond; 0: no limit.
func (p *Proxy) Slow(bytes int64) { p.slow.Store(bytes) }

// LoseAcks loses every n-th acknowledgement; 0: none.
func (p *Proxy) LoseAcks(n int64) { p.loseAcks.Store(n) }

// A link is one connection of a client, in two halves.
type link struct {
	p                *Proxy
	client, broker   *net.TCPConn
	given            atomic.Bool // the client's half is gone, the broker's is to live on
	lostUp, lostDown atomic.Bool // nothing arrives any more

	mu    sync.Mutex
	going chan struct{} // closed, unless it is stalled
}

func (l *link) cut() {
	l.client.Close()
	l.broker.Close()
}

// reset closes a connection with an RST.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// pump moves what comes from src to dst until one of them ends.
func (l *link) pump(dst, src *net.TCPConn, up bool) {
	r := bufio.NewReaderSize(src, 1<<16)
	var out []byte
	for {
		var err error
		out, err = l.take(r, out[:0], up)
		lost := &l.lostDown
		if up {
			lost = &l.lostUp
		}
		l.mu.Lock()
		going := l.going
		l.mu.Unlock()
		<-going
		switch {
		case lost.Load(): // into the void
		case !up && l.given.Load():
		default:
			if werr := l.write(dst, out); werr != nil && !l.given.Load() {
				l.cut()
			}
		}
		if err != nil {
			// The other half ends too, when it is not to live on.
			if !up || !l.given.Load() {
				l.cut()
			}
			return
		}
	}
}

// take reads at least one protocol message, and what else has come, and
// appends to out what is to go on.
func (l *link) take(r *bufio.Reader, out []byte, up bool) ([]byte, error) {
	var acks []string
	defer func() {
		if len(acks) > 0 && l.p.Acked != nil {
			l.p.Acked(acks)
		}
	}()
	for first := true; first || r.Buffered() > 0 && len(out) < 1<<18; first = false {
		at := len(out)
		var err error
		var size int
		if out, size, err = protocolMessage(r, out); err != nil {
			return out, err
		}
		m := out[at:]
		if size < 0 {
			continue
		}
		fields := bytes.Fields(m[:bytes.IndexByte(m, '\n')])
		content := m[len(m)-size-2 : len(m)-2]
		switch {
		case up && len(fields) > 1 && bytes.HasPrefix(fields[1], []byte("$JS.ACK.")):
			if string(content) == "+ACK" {
				acks = append(acks, string(fields[1]))
			}
			if n := l.p.loseAcks.Load(); n > 0 && l.p.nextAck.Add(1)%n == 0 {
				out = out[:at]
			}
		case !up && len(fields) > 3 && bytes.HasPrefix(fields[3], []byte("$JS.ACK.")) && l.p.Delivered != nil:
			if !l.lostDown.Load() && !l.given.Load() {
				l.p.Delivered(string(fields[3]), content)
			}
		}
	}
	return out, nil
}

// protocolMessage appends the next one to out: size is that of the payload it
// brings, with its headers, -1 for none.
func protocolMessage(r *bufio.Reader, out []byte) (_ []byte, size int, err error) {
	line, err := r.ReadSlice('\n')
	for errors.Is(err, bufio.ErrBufferFull) {
		out = append(out, line...)
		line, err = r.ReadSlice('\n')
	}
	out = append(out, line...)
	if err != nil {
		return out, -1, err
	}
	verb, _, _ := bytes.Cut(line, []byte(" "))
	switch string(verb) {
	case "PUB", "HPUB", "MSG", "HMSG":
	default:
		return out, -1, nil
	}
	fields := bytes.Fields(line)
	if size, err = strconv.Atoi(string(fields[len(fields)-1])); err != nil {
		return out, -1, err
	}
	at := len(out)
	out = append(out, make([]byte, size+2)...)
	n, err := io.ReadFull(r, out[at:])
	return out[:at+n], size, err
}

// write writes b, at the speed of the wire.
func (l *link) write(dst net.Conn, b []byte) error {
	for len(b) > 0 {
		n := len(b)
		if slow := l.p.slow.Load(); slow > 0 {
			n = min(n, int(slow))
			time.Sleep(time.Millisecond)
		}
		if _, err := dst.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
