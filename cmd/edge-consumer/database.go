package main

import (
	"context"
	"fmt"
	"os"
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
	loaded *config.Config
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
	return inbox.Open(ctx, file, &inbox.Options{Guest: true})
}

// path is the file that --db names, or else the configuration.
func (db *database) path() (string, error) {
	if db.file != "" {
		return db.file, nil
	}
	cfg, err := db.configured()
	switch {
	case err != nil:
		return "", err
	case cfg == nil:
		return "", exitf(exitUsage, "%s needs the database: --db FILE, or -c FILE for the one of a configuration", db.cmd.Name())
	}
	return cfg.Database.Path, nil
}

// configured is the configuration; nil if there is none, or if --db alone
// names the file.
func (db *database) configured() (_ *config.Config, err error) {
	if db.loaded != nil || !db.cmd.Flags().Changed("config") && (db.file != "" || !exists(defaultConfig)) {
		return db.loaded, nil
	}
	db.loaded, err = db.config.load()
	return db.loaded, err
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
