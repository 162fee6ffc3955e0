package web

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"edge.example/inbox"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServer_Token(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c := l.serve(Config{Token: "s3cret"})
	for _, path := range []string{"/readyz", "/metrics", "/version", "/", "/nowhere", "/healthz/", "//healthz"} {
		for _, header := range []string{
			"X: y", "Authorization: Bearer", "Authorization: Bearer ", "Authorization: Bearer s3cre", "Authorization: Bearer s3crets",
			"Authorization: Bearer S3CRET", "Authorization: Basic s3cret", "Authorization: s3cret",
		} {
			resp, body := ask(t, c, http.MethodGet, path, header)
			assert.Equal(t, http.StatusUnauthorized, resp.StatusCode, "%s with %s", path, header)
			assert.Contains(t, resp.Header.Get("WWW-Authenticate"), "Bearer")
			assert.NotContains(t, body, "s3cret")
		}
	}
	for _, header := range []string{"Authorization: Bearer s3cret", "Authorization: bearer  s3cret"} {
		for path, want := range map[string]int{"/readyz": 200, "/metrics": 200, "/version": 200, "/nowhere": 404} {
			resp, _ := ask(t, c, http.MethodGet, path, header)
			assert.Equal(t, want, resp.StatusCode, "%s with %s", path, header)
		}
	}
	l.set(func() { l.alive = errors.New("no group since a minute") })
	resp, body := ask(t, c, http.MethodGet, "/healthz")
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	assert.Equal(t, "not alive\n", body, "the reason is not for everybody")
	code, body, err := Get(t.Context(), c, "/healthz")
	require.NoError(t, err)
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Equal(t, "not alive: no group since a minute\n", body)
}

func TestServer_Version(t *testing.T) {
	t.Parallel()
	c := newLab(t).serve(Config{})
	resp, body := ask(t, c, http.MethodGet, "/version")
	assert.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	assert.JSONEq(t, `{"version": "v1.2.3", "sqlite": "3.50"}`, body)
}

func TestServer_RefusesWhatItIsNotFor(t *testing.T) {
	t.Parallel()
	c := newLab(t).serve(Config{})
	resp, _ := ask(t, c, http.MethodPost, "/healthz")
	assert.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
	resp, _ = ask(t, c, http.MethodGet, "/debug/pprof/")
	assert.Equal(t, http.StatusNotFound, resp.StatusCode)
	resp, _ = ask(t, c, http.MethodGet, "/healthz", "X-Long: "+strings.Repeat("x", 64<<10))
	assert.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
	resp, body := ask(t, c, http.MethodHead, "/readyz")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Empty(t, body)
}

func TestServer_Off(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"", "off"} {
		s, err := Listen(t.Context(), Config{Listen: listen}, newLab(t).src, quiet)
		require.NoError(t, err)
		assert.Nil(t, s.Addr())
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		stop()
		assert.NoError(t, <-ended)
		assert.NoError(t, s.Close())
		_, _, err = Get(t.Context(), Config{Listen: listen}, "/healthz")
		assert.ErrorContains(t, err, "off")
	}
}

func TestServer_FinishesWhatItWasAsked(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	asked, answer := make(chan bool, 1), make(chan bool)
	stats := l.src.Stats
	l.src.Stats = func(ctx context.Context) (inbox.Stats, error) {
		asked <- true
		<-answer
		return stats(context.WithoutCancel(ctx))
	}
	s, err := Listen(t.Context(), Config{Listen: "127.0.0.1:0"}, l.src, quiet)
	require.NoError(t, err)
	stopping := make(chan bool)
	s.http.RegisterOnShutdown(func() { close(stopping) })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()

	c := Config{Listen: s.Addr().String()}
	type result struct {
		code int
		err  error
	}
	got := make(chan result, 1)
	go func() {
		code, _, err := Get(context.Background(), c, "/readyz")
		got <- result{code, err}
	}()
	<-asked
	stop()
	<-stopping
	close(answer)
	assert.Equal(t, result{code: http.StatusOK}, <-got)
	require.NoError(t, <-ended)
	_, _, err = Get(t.Context(), c, "/healthz")
	assert.ErrorContains(t, err, "is edge-consumer running?")
}

func TestServer_LosesItsListener(t *testing.T) {
	t.Parallel()
	s, err := Listen(t.Context(), Config{Listen: "127.0.0.1:0"}, newLab(t).src, quiet)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	assert.ErrorContains(t, s.Run(t.Context()), "serving HTTP on 127.0.0.1")
}

func TestGet_DialsLoopbackForEveryAddress(t *testing.T) {
	t.Parallel()
	c := newLab(t).serve(Config{Listen: "0.0.0.0:0", Token: "s3cret"})
	code, body, err := Get(t.Context(), c, "/readyz")
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, code, body)
}

func TestGet_FollowsNoRedirect(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.RedirectHandler("http://192.0.2.1/", http.StatusFound))
	defer srv.Close()
	code, _, err := Get(t.Context(), Config{Listen: strings.TrimPrefix(srv.URL, "http://"), Token: "s3cret"}, "/healthz")
	require.NoError(t, err)
	assert.Equal(t, http.StatusFound, code, "the token goes nowhere else")
}
