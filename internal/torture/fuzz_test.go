//go:build linux || darwin

package torture

import (
	"flag"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var fuzzTime = flag.Duration("fuzztime", time.Minute, "how long each fuzz target runs in the long form")

// TestFuzzing lets every fuzz target of the module look for new inputs. (The
// short form is what each target's own package does: it goes through the seeds
// and the corpus in its testdata/fuzz.)
func TestFuzzing(t *testing.T) {
	if !*long {
		t.Skip("the corpora are gone through by the packages' own tests")
	}
	r := row(t, "Fuzzing")
	for pkg, targets := range fuzzTargets(t) {
		for _, target := range targets {
			t.Run(target, func(t *testing.T) {
				cmd := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+target+"$", "-fuzztime", fuzzTime.String(), pkg)
				cmd.Dir = "../.."
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, string(out))
				tried := regexp.MustCompile(`execs: (\d+)`).FindAllStringSubmatch(string(out), -1)
				require.NotEmpty(t, tried, string(out))
				n, err := strconv.Atoi(tried[len(tried)-1][1])
				require.NoError(t, err)
				r.Faults += n
				t.Logf("%s: %s inputs", pkg, thousands(n))
			})
		}
	}
}

// fuzzTargets finds them all, by package, so that none is forgotten.
func fuzzTargets(t *testing.T) map[string][]string {
	list := exec.Command("go", "list", "./...")
	list.Dir = "../.."
	pkgs, err := list.Output()
	require.NoError(t, err)
	found := map[string][]string{}
	for _, pkg := range strings.Fields(string(pkgs)) {
		cmd := exec.Command("go", "test", "-list", "^Fuzz", pkg)
		cmd.Dir = "../.."
		out, err := cmd.Output()
		require.NoError(t, err, pkg)
		for _, line := range strings.Fields(string(out)) {
			if strings.HasPrefix(line, "Fuzz") {
				found[pkg] = append(found[pkg], line)
			}
		}
	}
	require.NotEmpty(t, found)
	return found
}
