// Package inbox is an embedded transactional inbox.
package inbox
