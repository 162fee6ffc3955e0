//go:build !windows

package main

import "os"

// drawable: terminals obey the sequences that draw.
func drawable(*os.File) (restore func(), err error) { return nil, nil }
