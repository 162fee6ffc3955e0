package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"github.com/spf13/cobra"
)

// A database is the inbox file that an operator's command works on. It is
// opened as a guest: beside the program that owns it, or without one.
type database struct {
	cmd    *cobra.Command
	file   string
	config *configuration
}

// databaseFlag adds to cmd the flags that name the file: itself, or the
// configuration that does.
func databaseFlag(cmd *cobra.Command) *database {
	db := &database{cmd: cmd, config: configFlag(cmd)}
	cmd.Flags().StringVar(&db.file, "db", "", "the inbox's SQLite file")
	return db
}

// open opens the file; the caller closes it.
func (db *database) open(ctx context.Context) (*inbox.Inbox, error) {
	file, err := db.path()
	if err != nil {
		return nil, err
	}
	return openGuest(ctx, file)
}

// openGuest opens the file beside the program that owns it.
func openGuest(ctx context.Context, file string) (*inbox.Inbox, error) {
	ib, err := inbox.Open(ctx, file, &inbox.Options{Guest: true})
	if _, e := os.Stat(filepath.Dir(file)); e == nil && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no database %s yet: edge-consumer run makes it when it starts; is this the right path?", file)
	}
	return ib, err
}

// path is the file that --db names, or else the configuration. No more of that
// has to be right: its secrets may be those of the service alone.
func (db *database) path() (string, error) {
	switch {
	case db.file != "":
		return db.file, nil
	case !db.hasConfig():
		return "", exitf(exitUsage, "%s needs the database: --db FILE, or -c FILE for the one of a configuration", db.cmd.Name())
	}
	path, err := config.DatabasePath(db.config.file, os.LookupEnv)
	return path, loadError(err)
}

// hasConfig is false if there is no configuration, or if --db alone names the
// file.
func (db *database) hasConfig() bool {
	return db.cmd.Flags().Changed("config") || db.file == "" && exists(defaultConfig)
}

// configured is the configuration, for those who connect as it says; nil if
// there is none.
func (db *database) configured() (*config.Config, error) {
	if !db.hasConfig() {
		return nil, nil
	}
	return db.config.load()
}

// handlers is the configuration for those who do not connect; nil if there is
// none.
func (db *database) handlers() (*config.Config, error) {
	if !db.hasConfig() {
		return nil, nil
	}
	cfg, err := config.LoadWithoutSecrets(db.config.file, os.LookupEnv)
	return cfg, loadError(err)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// consumerNames are those of the file, sorted.
func consumerNames(stats *inbox.Stats) []string {
	names := make([]string, 0, len(stats.Consumers))
	for name := range stats.Consumers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// knownConsumer is an error that says which consumers there are, when name is
// none of them.
func knownConsumer(stats *inbox.Stats, name string) error {
	if _, ok := stats.Consumers[name]; ok {
		return nil
	}
	return exitf(exitNoMatch, "there is no consumer %q; %s", name, theConsumers(stats))
}

// theConsumers says which consumers there are.
func theConsumers(stats *inbox.Stats) string {
	names := consumerNames(stats)
	if len(names) == 0 {
		return "the inbox has none yet"
	}
	return fmt.Sprintf("the inbox has %s", strings.Join(names, ", "))
}
