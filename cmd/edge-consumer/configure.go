package main

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
)

// A configuration is what a command is told of the configuration file: where
// it is, and what flags say in its stead.
type configuration struct {
	file  string
	flags map[string]config.Flag // by the setting that it is instead of
}

// defaultConfig is the file that is read when none is named.
const defaultConfig = "edge.yaml"

// configFlag adds the flag that names the file.
func configFlag(cmd *cobra.Command) *configuration {
	c := &configuration{flags: map[string]config.Flag{}}
	cmd.Flags().StringVarP(&c.file, "config", "c", defaultConfig, "the configuration file")
	return c
}

// settingFlags adds flags that go before the file and the environment.
func (c *configuration) settingFlags(cmd *cobra.Command) {
	add := func(flag, setting, usage string) {
		cmd.Flags().Func(flag, usage+" (instead of "+setting+")", func(value string) error {
			if value == "" {
				return errors.New("it is empty: leave it out, or say which")
			}
			if setting == "database.path" { // what is typed is relative to where one is
				abs, err := filepath.Abs(value)
				if err != nil {
					return err
				}
				value = abs
			}
			c.flags[setting] = config.Flag{Name: flag, Value: value}
			return nil
		})
	}
	add("db", "database.path", "the inbox's SQLite `file`")
	add("nats", "nats.url", "NATS server `URLs`, with commas between them")
	add("context", "nats.context", "`name` of a context of the nats CLI")
	add("listen", "http.listen", "`address` for health and metrics, or off")
	add("log-level", "log.level", "debug, info, warn or error")
	add("log-format", "log.format", "text or json")
}

// load reads the file. What is wrong with it is an error of usage.
func (c *configuration) load() (*config.Config, error) {
	cfg, err := config.Load(c.file, os.LookupEnv, c.flags)
	return cfg, loadError(err)
}

// loadError is configError, with a hint where there is no file.
func loadError(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return exitf(exitUsage, "%w: name the configuration with -c FILE, or make one with edge-consumer init", err)
	}
	return configError(err)
}

// configError gives problems of a configuration the exit code of a usage error.
func configError(err error) error {
	var several config.Problems
	var one config.Problem
	if errors.As(err, &several) || errors.As(err, &one) {
		return &exitError{exitUsage, err}
	}
	return err
}

// problemText is what to print of an error that shows places in a file; ""
// for another.
func problemText(err error) string {
	var several config.Problems
	var one config.Problem
	switch {
	case errors.As(err, &several) && len(several) > 0:
		return several.Subject() + " is wrong:\n" + several.Text()
	case errors.As(err, &one):
		return one.File + " is wrong:\n" + one.Text()
	}
	return ""
}

// logger makes the log that cfg asks for. Its level can be changed while it is
// in use.
func logger(cfg *config.Config, w io.Writer) (*slog.Logger, *slog.LevelVar) {
	level := &slog.LevelVar{}
	setLevel(level, cfg)
	format := cfg.Log.Format
	if format == "" {
		format = "json"
		if f, ok := w.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
			format = "text"
		}
	}
	o := &slog.HandlerOptions{Level: level}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, o)), level
	}
	return slog.New(slog.NewJSONHandler(w, o)), level
}

func setLevel(v *slog.LevelVar, cfg *config.Config) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(cfg.Log.Level)); err == nil {
		v.Set(l)
	}
}

// discard is a log for work that says itself what happens.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
