package main

import (
	"bytes"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
)

// draw shows the last sample, and what kept it from being a newer one.
func (t *top) draw(trouble error) error {
	var frame bytes.Buffer
	p := printer{w: &frame}
	r := t.last.report
	p.printf("%s  %s\n", t.last.at.Format(time.TimeOnly), visible(r.Database))
	p.printf("size    %s, and %s of write-ahead log", humanize.Bytes(uint64(r.DatabaseBytes)), humanize.Bytes(uint64(r.WALBytes)))
	if r.DiskFreeBytes != nil {
		p.printf("; %s free on the disk", humanize.Bytes(*r.DiskFreeBytes))
	}
	p.printf("\n")
	broker := t.broker.Load()
	if broker != nil {
		p.printf("broker  %s\n", visible(broker.text()))
	}
	if trouble != nil {
		p.printf("file    cannot be read now: %s\n", visible(oneLine(trouble)))
	}
	p.printf("\n")
	if len(r.Consumers) == 0 {
		p.printf("The inbox has no consumer yet.\n")
	} else {
		t.consumers(&p, r, broker)
	}
	p.printf("\nq ends\n")
	return t.screen.draw(frame.String())
}

func (t *top) consumers(p *printer, r *statusReport, broker *brokerStatus) {
	columns := []column{{name: "CONSUMER", most: 32}}
	for _, name := range []string{"APPLIED/S", "DUPLICATES/S", "FAILURES/S", "PENDING", "OLDEST", "DEAD"} {
		columns = append(columns, column{name: name, right: true})
	}
	if broker != nil {
		columns = append(columns, column{name: "LAG", right: true}, column{name: "ACK PENDING", right: true})
	}
	columns = append(columns, column{})
	tab := newTable(p, columns...)
	for i := range r.Consumers {
		c := &r.Consumers[i]
		row := []string{c.Consumer, "-", "-", "-", comma(c.Pending), "-", comma(c.Dead)}
		if rate, ok := t.last.rates[c.Consumer]; ok {
			row[1], row[2], row[3] = perSecond(rate.applied), perSecond(rate.duplicates), perSecond(rate.failures)
		}
		if c.OldestPendingSeconds != nil {
			row[5] = age(time.Duration(*c.OldestPendingSeconds * float64(time.Second)))
		}
		if broker != nil {
			lag, pending := broker.waiting(c.Consumer)
			row = append(row, lag, pending)
		}
		note := ""
		if c.Paused {
			note = "paused"
		}
		tab.row(append(row, note)...)
	}
	tab.flush()
}

// waiting is what all streams of a consumer have for it; "-" when that is not
// known.
func (s *brokerStatus) waiting(consumer string) (lag, ackPending string) {
	var waits uint64
	var unacked int
	known := false
	for _, c := range s.Consumers {
		switch {
		case c.Consumer != consumer:
			continue
		case c.Error != nil:
			return "-", "-"
		}
		known = true
		waits += *c.Lag
		unacked += *c.AckPending
	}
	if !known {
		return "-", "-"
	}
	return comma(waits), comma(unacked)
}

// perSecond has a digit after the point as long as it says something.
func perSecond(v float64) string {
	if v < 100 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return comma(int64(v + 0.5))
}
