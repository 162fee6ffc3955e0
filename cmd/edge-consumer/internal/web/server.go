package web

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits for whoever asks: the answers are short and come at once.
const (
	headerLimit   = 16 << 10
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	stopTimeout   = 5 * time.Second // for requests that are being answered
	scrapes       = 4               // at a time
)

// A Server is listening from Listen on, and answers in Run.
type Server struct {
	src   *Source
	token *[sha256.Size]byte // its hash; nil when none is needed
	l     net.Listener       // nil when the server is off
	http  *http.Server
}

// Listen opens the address that c names, so that a port which is taken shows
// before the daemon says that it is ready. Call Run, or Close.
func Listen(ctx context.Context, c Config, src Source, log *slog.Logger) (*Server, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	s := &Server{src: &src}
	if c.Token != "" {
		sum := sha256.Sum256([]byte(c.Token))
		s.token = &sum
	}
	errorLog := slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	reg, err := newRegistry(s.src)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, src.Versions)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog:            errorLog,
		ErrorHandling:       promhttp.ContinueOnError, // one bad metric does not blind the operator
		MaxRequestsInFlight: scrapes,
		EnableOpenMetrics:   true,
	}))
	s.http = &http.Server{
		Handler:           s.guarded(mux),
		ErrorLog:          errorLog,
		MaxHeaderBytes:    headerLimit,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
	}
	if !c.Off() {
		if s.l, err = c.listen(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Addr is where it listens; nil when it is off.
func (s *Server) Addr() net.Addr {
	if s.l == nil {
		return nil
	}
	return s.l.Addr()
}

// Run answers until ctx ends, then finishes what it was asked and returns nil.
// A server that is off only waits.
func (s *Server) Run(ctx context.Context) error {
	if s.l == nil {
		<-ctx.Done()
		return nil
	}
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving HTTP on %s: %w", s.l.Addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err := s.http.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close() // who has not read its answer by now does not get it
	}
	// The one error of Serve here is that it was shut down.
	<-served
	return err
}

// Close gives up the address. It is for when Run is never called.
func (s *Server) Close() error {
	if s.l == nil {
		return nil
	}
	return s.l.Close()
}

// guarded lets those pass that may ask.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.URL.Path != "/healthz" && !s.allowed(r) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="edge-consumer"`)
			writeText(w, http.StatusUnauthorized, "a token is needed: Authorization: Bearer TOKEN\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// allowed compares hashes, in a time that says nothing about the token, not
// even its length.
func (s *Server) allowed(r *http.Request) bool {
	if s.token == nil {
		return true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1
}
