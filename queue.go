package inbox

import (
	"context"
	"sync"
)

// A queue holds the jobs that wait for the writer, in order, within bounds of
// number and bytes. Many push, one takes.
type queue struct {
	maxJobs  int
	maxBytes int

	mu     sync.Mutex
	jobs   []job
	bytes  int
	closed bool
	space  chan struct{} // closed, and replaced, whenever jobs were taken
	ready  chan struct{} // holds one token when there may be jobs, or the queue was closed
}

func newQueue(maxJobs, maxBytes int) *queue {
	return &queue{
		maxJobs:  maxJobs,
		maxBytes: maxBytes,
		space:    make(chan struct{}),
		ready:    make(chan struct{}, 1),
	}
}

// push appends j. It blocks while the queue is full; a job larger than the
// whole queue is let in when the queue is empty. Its errors are ErrClosed and
// the context's.
func (q *queue) push(ctx context.Context, j job) error {
	for {
		full, err := q.offer(j)
		if full == nil {
			return err
		}
		select {
		case <-full:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// offer is push without waiting: when there is no room it returns the channel
// that is closed once there may be.
func (q *queue) offer(j job) (full <-chan struct{}, err error) {
	n := j.size()
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return nil, ErrClosed
	case len(q.jobs) > 0 && (len(q.jobs) >= q.maxJobs || q.bytes+n > q.maxBytes):
		return q.space, nil
	}
	q.jobs = append(q.jobs, j)
	q.bytes += n
	q.signal()
	return nil, nil
}

func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take moves what is waiting into buf, up to maxJobs and (but for the first)
// maxBytes. It blocks until there is something; after close it gives what is
// left, then nothing.
func (q *queue) take(buf []job, maxJobs, maxBytes int) []job {
	for {
		q.mu.Lock()
		if len(q.jobs) > 0 {
			n, bytes := 0, 0
			for n < len(q.jobs) && n < maxJobs {
				size := q.jobs[n].size()
				if n > 0 && bytes+size > maxBytes {
					break
				}
				bytes += size
				n++
			}
			buf = append(buf, q.jobs[:n]...)
			rest := copy(q.jobs, q.jobs[n:])
			clear(q.jobs[rest:])
			q.jobs = q.jobs[:rest]
			q.bytes -= bytes
			close(q.space)
			q.space = make(chan struct{})
			q.mu.Unlock()
			return buf
		}
		closed := q.closed
		q.mu.Unlock()
		if closed {
			return buf
		}
		<-q.ready
	}
}

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	close(q.space)
	q.space = make(chan struct{})
	q.mu.Unlock()
	q.signal()
}

// length is the number of jobs that wait.
func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.jobs)
}
