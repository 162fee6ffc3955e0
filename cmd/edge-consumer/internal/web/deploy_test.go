package web

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"edge.example/inbox"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// An expression in PromQL, and where it stands.
type expression struct{ where, text string }

// expressions are all that the dashboard and the alert rules ask for.
func expressions(t *testing.T) []expression {
	t.Helper()
	return append(dashboard(t), rules(t)...)
}

// dashboard takes every "expr", wherever it stands, and every query of a
// variable.
func dashboard(t *testing.T) (all []expression) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deploy, "grafana-dashboard.json"))
	require.NoError(t, err)
	var doc any
	require.NoError(t, json.Unmarshal(text, &doc))
	var walk func(where string, v any)
	walk = func(where string, v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(where, e)
			}
		case map[string]any:
			for _, name := range []string{"title", "name"} {
				if s, ok := v[name].(string); ok {
					where += "/" + s
					break
				}
			}
			for k, e := range v {
				s, ok := e.(string)
				if ok && (k == "expr" || k == "query" && strings.HasPrefix(s, "label_values(")) {
					all = append(all, expression{"dashboard" + where, s})
				}
				walk(where, e)
			}
		}
	}
	walk("", doc)
	require.NotEmpty(t, all)
	return all
}

func rules(t *testing.T) (all []expression) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deploy, "prometheus-alerts.yml"))
	require.NoError(t, err)
	var doc struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &doc))
	for _, g := range doc.Groups {
		for _, r := range g.Rules {
			all = append(all, expression{"alert " + r.Alert, r.Expr})
		}
	}
	require.NotEmpty(t, all)
	return all
}

var (
	metricName   = regexp.MustCompile(`\b(?:edge_consumer|process|go)_[a-z0-9_]+`)
	matcher      = regexp.MustCompile(`(\w+)\s*=~?\s*"([^"]*)"`)
	ofHistograms = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// A panel of a metric that is not there is empty and says nothing.
func TestDeploy_NamesWhatThereIs(t *testing.T) {
	t.Parallel()
	families, err := newLab(t).registry().Gather()
	require.NoError(t, err)
	series := map[string]bool{}
	values := map[string]map[string]bool{} // of the labels
	for _, f := range families {
		series[f.GetName()] = true
		if f.GetMetric()[0].GetHistogram() != nil {
			delete(series, f.GetName())
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				series[f.GetName()+part] = true
			}
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if values[l.GetName()] == nil {
					values[l.GetName()] = map[string]bool{}
				}
				values[l.GetName()][l.GetValue()] = true
			}
		}
	}
	used := map[string]bool{}
	for _, e := range expressions(t) {
		for _, name := range metricName.FindAllString(e.text, -1) {
			assert.True(t, series[name], "%s names %s, which is not in the registry", e.where, name)
			used[ofHistograms.ReplaceAllString(name, "")] = true
		}
		for _, m := range matcher.FindAllStringSubmatch(e.text, -1) {
			switch label := m[1]; label {
			case "job", "instance", "consumer": // the operator's
			default:
				for value := range strings.SplitSeq(m[2], "|") {
					assert.True(t, values[label][value], "%s asks for %s=%q, which no metric has", e.where, label, value)
				}
			}
		}
	}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), namespace) {
			assert.True(t, used[f.GetName()], "nobody looks at %s", f.GetName())
		}
	}
}

// Loss of data must reach somebody: each kind of alert that is not a message's
// own has a rule, or is seen by the gauge of another.
func TestDeploy_AlertsHaveRules(t *testing.T) {
	t.Parallel()
	all := fmt.Sprint(rules(t))
	for _, k := range alertKinds {
		switch k {
		case inbox.AlertDead, inbox.AlertConflict, inbox.AlertBroker: // messages, conflicts_total, broker_connected
		case inbox.AlertRestored, alertOther:
		default:
			assert.Regexp(t, `kind=~?"([a-z_]+\|)*`+string(k)+`[|"]`, all)
		}
	}
}

// tool is the path of a program that not every machine has.
func tool(t *testing.T, name, from string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not on the PATH (%s): not checked", name, from)
	}
	return path
}

func runTool(t *testing.T, dir, path string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s %s:\n%s", filepath.Base(path), strings.Join(args, " "), out)
}

func TestDeploy_AlertRules(t *testing.T) {
	t.Parallel()
	promtool := tool(t, "promtool", "Debian has it in the package prometheus")
	runTool(t, deploy, promtool, "check", "rules", "prometheus-alerts.yml")
	runTool(t, deploy, promtool, "test", "rules", "prometheus-alerts_test.yml")
}

// Each expression of the dashboard becomes a rule, for promtool to parse.
func TestDeploy_DashboardIsPromQL(t *testing.T) {
	t.Parallel()
	promtool := tool(t, "promtool", "Debian has it in the package prometheus")
	type rule struct{ Record, Expr string }
	var all []rule
	for i, e := range dashboard(t) {
		if !strings.HasPrefix(e.text, "label_values(") {
			all = append(all, rule{fmt.Sprintf("panel%d", i), strings.ReplaceAll(e.text, "$__rate_interval", "5m")})
		}
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": all}}})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "panels.yml"), text, 0o600))
	runTool(t, dir, promtool, "check", "rules", "panels.yml")
}

func TestDeploy_Unit(t *testing.T) {
	t.Parallel()
	analyze := tool(t, "systemd-analyze", "it comes with systemd")
	unit, err := os.ReadFile(filepath.Join(deploy, "edge-consumer.service"))
	require.NoError(t, err)
	const program = "/usr/bin/edge-consumer"
	require.Contains(t, string(unit), "ExecStart="+program+" run -c /etc/edge-consumer/edge.yaml\n")
	self, err := os.Executable() // verify looks whether the program is there
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "edge-consumer.service")
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(unit), "ExecStart="+program, "ExecStart="+self)), 0o600))
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput()
	assert.NoError(t, err, "%s", out)
	assert.NotContains(t, string(out), path, "not a warning about our unit")
}

func TestDeploy_Users(t *testing.T) {
	t.Parallel()
	sysusers := tool(t, "systemd-sysusers", "it comes with systemd")
	file, err := filepath.Abs(filepath.Join(deploy, "edge-consumer.sysusers"))
	require.NoError(t, err)
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	runTool(t, root, sysusers, "--dry-run", "--root="+root, file)
}
