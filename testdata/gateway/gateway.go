// Package gateway holds the configuration of a branch-office gateway, as
// testdata/gateway has it, for the demo and for tests.
package gateway

import "embed"

// Files are edge.yaml and what it refers to.
//
//go:embed edge.yaml edge_test.yaml migrations schemas
var Files embed.FS
