package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	makesRows = regexp.MustCompile(`(?i)^\s*(?:INSERT(?:\s+OR\s+\w+)?\s+INTO|REPLACE\s+INTO)\s+([\w."]+)`)
	needsRows = regexp.MustCompile(`(?i)^\s*(?:UPDATE(?:\s+OR\s+\w+)?|DELETE\s+FROM)\s+([\w."]+)`)
)

// Warnings are what is allowed and may not work as meant: a message that waits
// for a row (expect_rows) which a later message makes, while that waits behind
// it since they have the same key.
func (c *Config) Warnings() (ps Problems) {
	for i := range c.Consumers {
		k := &c.Consumers[i]
		if k.Key == (Key{}) {
			continue
		}
		h, path := c.HandlerOf(i)
		for n, s := range h.SQL {
			causes := s.PermanentIf
			if causes == nil {
				causes = h.PermanentIf
			}
			if k.DeadPasses && slices.Contains(causes, "rows") {
				continue
			}
			table := needsRows.FindStringSubmatch(s.SQL)
			if table == nil || s.ExpectRows == nil || *s.ExpectRows == 0 {
				continue
			}
			for _, maker := range h.SQL {
				made := makesRows.FindStringSubmatch(maker.SQL)
				if made != nil && strings.EqualFold(made[1], table[1]) && maker.When != s.When {
					ps = append(ps, c.file.in(fmt.Sprintf("%s.sql[%d].expect_rows", path, n),
						"consumer %s: a message that finds no row in %s waits, and the one that would make the row waits behind it if it comes later and has the same key; let the statement not need the row, or leave the key out", k.Name, table[1]))
					break
				}
			}
		}
	}
	return ps.Unique()
}
