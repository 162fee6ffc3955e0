//go:build unix

package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"edge.example/inbox/internal/natstest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// TestDocs does what the documentation says, in order, in a folder of its own,
// with a real nats-server. Of the fenced blocks:
//
//	```sh               runs in a shell; must succeed
//	```sh exit=1        must end with that status
//	```sh background    is started, and stopped at the end
//	```sh norun         is not run: it needs root, a network or a daemon
//	```console          the lines after "$ " run; what follows each is its output.
//	                    "…" stands for any text, a line of "…" for any lines;
//	                    spaces and times are not compared
//	```yaml title="f"   is written to the file f; so are sql and json
//	```yaml             is the part of a configuration that matters: with what is
//	                    missing added, edge-consumer check must find it right
//	```sql              must run on edge.db
//	```text, ini, go    is not run
//
// nats-server stands for the server of the test, and nats and sqlite3 are
// stand-ins that know what the documents use (see TestMain). Comments direct
// what a reader does by hand:
//
//	<!-- test: gateway -->      edge-consumer init, and run in the background
//	<!-- test: run -->          edge-consumer run in the background
//	<!-- test: reload -->       SIGHUP, until the log says that it was read
//	<!-- test: wait SQL -->     until it has a row in edge.db
//	<!-- test: run-sh … -->     a command that the reader need not see
//	<!-- test: stop -->         SIGTERM, and wait; kill: SIGKILL
func TestDocs(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	howto, err := filepath.Glob("../../docs/howto/*.md")
	require.NoError(t, err)
	for _, file := range append(append(files, howto...), "../../README.md") {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "../../"), ".md")
		if name == "docs/commands" {
			continue // generated: its examples are of no one folder
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			r := newReader(t)
			for _, b := range docBlocks(t, file, string(text)) {
				r.do(b)
			}
			for _, p := range r.background {
				r.stop(p)
			}
		})
	}
}

// A docBlock is a fenced block of a document, or a comment for the test.
type docBlock struct {
	place, lang string
	info        map[string]string
	text        string
}

var infoWord = regexp.MustCompile(`([a-z]+)(?:="([^"]*)"|=(\S+))?`)

func docBlocks(t *testing.T, file, text string) (bs []docBlock) {
	var b *docBlock
	indent := "" // of a block in a list
	for i, line := range strings.Split(text, "\n") {
		if b == nil {
			indent = line[:len(line)-len(strings.TrimLeft(line, " "))]
		}
		line = strings.TrimPrefix(line, indent)
		switch directive, ok := strings.CutPrefix(line, "<!-- test: "); {
		case ok && b == nil:
			bs = append(bs, docBlock{place: fmt.Sprintf("%s:%d", file, i+1), lang: "test", text: strings.TrimSuffix(directive, " -->")})
		case b == nil && strings.HasPrefix(line, "```"):
			lang, rest, _ := strings.Cut(strings.TrimPrefix(line, "```"), " ")
			b = &docBlock{place: fmt.Sprintf("%s:%d", file, i+1), lang: lang, info: map[string]string{}}
			for _, m := range infoWord.FindAllStringSubmatch(rest, -1) {
				b.info[m[1]] = m[2] + m[3]
			}
		case b != nil && line == "```":
			bs = append(bs, *b)
			b = nil
		case b != nil:
			b.text += line + "\n"
		}
	}
	require.Nil(t, b, "%s: a block does not end", file)
	return bs
}

// A reader does what a document says.
type reader struct {
	t          *testing.T
	dir        string
	env        []string
	background []*process
	parts      int
}

// A process writes to a log.
type process struct {
	*exec.Cmd
	log string
}

func (p *process) said() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func newReader(t *testing.T) *reader {
	dir, err := os.MkdirTemp("", "docs") // short: a socket is in it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	broker := natstest.Start(t, nil)
	r := &reader{t: t, dir: dir, env: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir,
		"BRANCH_PASSWORD=x", "BRANCH_TOKEN=x", "METRICS_TOKEN=x", // a reader's own
		"NATS_URL=" + broker.URL(), "EDGE_HTTP_LISTEN=unix:" + filepath.Join(dir, "http.sock"),
	}}
	secrets(t, dir)
	t.Cleanup(func() {
		for _, p := range r.background {
			if p.ProcessState == nil {
				_ = p.Process.Kill()
				_ = p.Wait()
			}
			if t.Failed() {
				t.Logf("%s said:\n%s", strings.Join(p.Args, " "), p.said())
			}
		}
	})
	return r
}

func (r *reader) do(b docBlock) {
	t := r.t
	_, norun := b.info["norun"]
	_, background := b.info["background"]
	title := b.info["title"]
	switch {
	case norun:
		require.Contains(t, []string{"sh", "console"}, b.lang, b.place)
	case b.lang == "test":
		r.direct(b)
	case title != "":
		path := filepath.Join(r.dir, title)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755), b.place)
		require.NoError(t, os.WriteFile(path, []byte(b.text), 0o600), b.place)
		if strings.Contains(b.text, "\nconsumers:") {
			r.check(b, title)
		}
	case b.lang == "yaml":
		r.check(b, r.part(b))
	case b.lang == "sh" && background:
		if !strings.HasPrefix(b.text, "nats-server ") {
			r.start(strings.TrimSpace(b.text))
		}
	case b.lang == "sh":
		out, code := r.run("set -e\n" + b.text)
		require.Equal(t, cmp.Or(b.info["exit"], "0"), strconv.Itoa(code), "%s:\n%s%s", b.place, b.text, out)
	case b.lang == "console":
		r.console(b)
	case b.lang == "sql":
		for _, statement := range strings.SplitAfter(b.text, ";\n") {
			if strings.TrimSpace(statement) == "" {
				continue
			}
			out, code := r.run("sqlite3 edge.db \"$SQL\"", "SQL="+statement)
			require.Zero(t, code, "%s:\n%s%s", b.place, statement, out)
		}
	default:
		require.Contains(t, []string{"", "text", "ini", "go", "json"}, b.lang, b.place)
	}
}

func (r *reader) direct(b docBlock) {
	switch what, arg, _ := strings.Cut(b.text, " "); what {
	case "gateway":
		out, code := r.run("edge-consumer init")
		require.Zero(r.t, code, "%s: %s", b.place, out)
		r.start("edge-consumer run")
	case "run":
		r.start("edge-consumer run")
	case "reload":
		p := r.background[len(r.background)-1]
		n := strings.Count(p.said(), "the configuration ")
		require.NoError(r.t, p.Process.Signal(syscall.SIGHUP), b.place)
		r.until(func() bool { return strings.Count(p.said(), "the configuration ") > n }, b.place)
	case "wait":
		r.until(func() bool {
			out, code := r.run("sqlite3 edge.db \"$SQL\"", "SQL="+arg)
			return code == 0 && out != ""
		}, b.place)
	case "run-sh":
		out, code := r.run(arg)
		require.Zero(r.t, code, "%s: %s", b.place, out)
	case "kill":
		p := r.background[len(r.background)-1]
		require.NoError(r.t, p.Process.Kill())
		_ = p.Wait() // the error is that it was killed
	case "stop":
		r.stop(r.background[len(r.background)-1])
	default:
		r.t.Fatalf("%s: nothing is known of %q", b.place, b.text)
	}
}

func (r *reader) until(done func() bool, place string) {
	require.Eventually(r.t, done, time.Minute, 20*time.Millisecond, place)
}

func (r *reader) command(script string, env ...string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = r.dir
	cmd.Env = append(append([]string{}, r.env...), env...)
	return cmd
}

// run runs a script and returns what it wrote, and its exit status.
func (r *reader) run(script string, env ...string) (string, int) {
	cmd := r.command(script, env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		r.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// start starts a command that goes on, and waits for a gateway to run.
func (r *reader) start(command string) {
	p := &process{r.command("exec " + command), filepath.Join(r.dir, fmt.Sprintf("log%d", len(r.background)))}
	log, err := os.Create(p.log)
	require.NoError(r.t, err)
	p.Stdout, p.Stderr = log, log
	require.NoError(r.t, p.Start())
	require.NoError(r.t, log.Close())
	r.background = append(r.background, p)
	if strings.HasPrefix(command, "edge-consumer run") {
		r.until(func() bool { return strings.Contains(p.said(), `"msg":"running"`) }, command)
	}
}

// stop ends a process as systemd would; that must be clean.
func (r *reader) stop(p *process) {
	if p.ProcessState != nil {
		return
	}
	require.NoError(r.t, p.Process.Signal(syscall.SIGTERM))
	require.NoError(r.t, p.Wait(), p.Args)
}

// reads are the commands that may be run again until they show what the
// document shows: they change nothing.
var reads = regexp.MustCompile(`^(sqlite3|edge-consumer (status|list|show|audit|healthcheck))\b`)

func (r *reader) console(b docBlock) {
	lines := strings.Split(strings.TrimSuffix(b.text, "\n"), "\n")
	for i := 0; i < len(lines); {
		command, ok := strings.CutPrefix(lines[i], "$ ")
		require.True(r.t, ok, "%s: a command begins with $: %s", b.place, lines[i])
		for i++; strings.HasSuffix(command, `\`); i++ {
			command += "\n" + lines[i]
		}
		var want []string
		for ; i < len(lines) && !strings.HasPrefix(lines[i], "$ "); i++ {
			want = append(want, lines[i])
		}
		exit := "0"
		if i == len(lines) {
			exit = cmp.Or(b.info["exit"], "0")
		}
		pattern := outputPattern(want)
		out, code := r.run(command)
		for deadline := time.Now().Add(time.Minute); !(pattern.MatchString(squeeze(out)) && strconv.Itoa(code) == exit) &&
			reads.MatchString(command) && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			out, code = r.run(command)
		}
		require.Equal(r.t, exit, strconv.Itoa(code), "%s: $ %s\n%s", b.place, command, out)
		require.Regexp(r.t, pattern, squeeze(out), "%s: $ %s\n%s", b.place, command, out)
	}
}

var (
	spaces = regexp.MustCompile(`[ \t]+`)
	times  = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
)

// squeeze is output without what differs from run to run.
func squeeze(out string) string {
	var lines []string
	for line := range strings.SplitSeq(out, "\n") {
		if line = strings.TrimSpace(spaces.ReplaceAllString(times.ReplaceAllString(line, "TIME"), " ")); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func outputPattern(lines []string) *regexp.Regexp {
	text := regexp.QuoteMeta(squeeze(strings.Join(lines, "\n")))
	text = regexp.MustCompile(`(?m)^…$`).ReplaceAllString(text, `(?s:.*)`)
	return regexp.MustCompile("^" + strings.ReplaceAll(text, "…", ".*") + "$")
}

// check holds a configuration to be right.
func (r *reader) check(b docBlock, file string) {
	out, code := r.run("edge-consumer check -c " + file)
	require.Zero(r.t, code, "%s:\n%s", b.place, out)
}

// part writes a part of a configuration to a file, with what else it needs.
func (r *reader) part(b docBlock) string {
	text := b.text
	for key, value := range map[string]string{
		"database":  "{path: edge.db}",
		"consumers": "[{name: orders, stream: ORDERS, sql: [SELECT 1]}]",
	} {
		if !strings.Contains("\n"+text, "\n"+key+":") {
			text += key + ": " + value + "\n"
		}
	}
	if _, err := os.Stat(filepath.Join(r.dir, "migrations")); err == nil && !strings.Contains("\n"+text, "\nmigrations:") {
		text += "migrations: migrations\n"
	}
	r.parts++
	name := fmt.Sprintf("part%d.yaml", r.parts)
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
	return name
}

// TestDocs_Permissions: what docs/howto/connect.md says that the gateway must
// be allowed is enough.
func TestDocs_Permissions(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/howto/connect.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(text), "\n## What the gateway must be allowed\n")
	section, _, _ = strings.Cut(section, "\n## ")
	allowed := map[bool][]string{} // by whether it is to be subscribed to
	for _, m := range regexp.MustCompile("`([$_][^` ]+)`").FindAllStringSubmatch(section, -1) {
		subject := strings.NewReplacer("<stream>", "ORDERS", "<durable>", "orders").Replace(m[1])
		subscribe := strings.HasPrefix(subject, "_")
		allowed[subscribe] = append(allowed[subscribe], subject)
	}
	require.Len(t, allowed, 2)
	broker := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "x"},
			{Username: "edge", Password: "x", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: allowed[false]}, Subscribe: &server.SubjectPermission{Allow: allowed[true]},
			}},
		}
	})
	as := func(user string) string {
		return "NATS_URL=" + strings.Replace(broker.URL(), "nats://", "nats://"+user+":x@", 1)
	}
	r := newReader(t)
	r.env = append(r.env, as("edge"))
	out, code := r.run("edge-consumer init")
	require.Zero(t, code, out)
	publish := func(id string) {
		out, code := r.run(`nats pub orders.placed '{"order": "'$ID'", "customer": "Ada", "total": 5}' -H Nats-Msg-Id:$ID`, as("admin"), "ID="+id)
		require.Zero(t, code, out)
		r.direct(docBlock{place: t.Name(), text: "wait SELECT 1 FROM orders WHERE id = '" + id + "'"})
	}
	r.start("edge-consumer run")
	publish("A-1")
	out, code = r.run(`sqlite3 edge.db "VACUUM INTO 'backup.db'" && edge-consumer audit --nats $NATS_URL`)
	require.Zero(t, code, out)
	publish("A-2")
	r.stop(r.background[0])
	out, code = r.run("rm edge.db* && cp backup.db edge.db")
	require.Zero(t, code, out)
	r.start("edge-consumer run") // puts the durable consumer back
	r.direct(docBlock{place: t.Name(), text: "wait SELECT 1 FROM orders WHERE id = 'A-2'"})
	publish("A-3")
	r.stop(r.background[1])
	said := r.background[1].said()
	require.Contains(t, said, `"alert":"missing"`)
	require.NotContains(t, r.background[0].said()+said, "ermissions", "violation")
}
