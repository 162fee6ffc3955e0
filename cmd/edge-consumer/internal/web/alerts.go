package web

import (
	"edge.example/inbox"
	"github.com/prometheus/client_golang/prometheus"
)

// alertKinds are the values of the label kind. Whatever else comes, from a
// newer inbox, is "other".
var alertKinds = []inbox.AlertKind{
	inbox.AlertDead, inbox.AlertConflict, inbox.AlertStorage, inbox.AlertBroker, inbox.AlertStreamNew,
	inbox.AlertStreamReissued, inbox.AlertConsumerNew, inbox.AlertMissing, inbox.AlertRestored, alertOther,
}

const alertOther inbox.AlertKind = "other"

// Alerts counts alerts, by kind, from the start of the process. It is made
// before the inbox is opened, whose Observer it feeds on.
type Alerts struct {
	total *prometheus.CounterVec
	kinds map[inbox.AlertKind]prometheus.Counter
}

// NewAlerts starts every kind at zero, so that the first one is an increase.
func NewAlerts() *Alerts {
	a := &Alerts{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: namespace + "alerts_total",
			Help: "Alerts since the process started, by kind.",
		}, []string{"kind"}),
		kinds: map[inbox.AlertKind]prometheus.Counter{},
	}
	for _, k := range alertKinds {
		a.kinds[k] = a.total.WithLabelValues(string(k))
	}
	return a
}

// Count is for inbox.Observer.Alert.
func (a *Alerts) Count(alert inbox.Alert) {
	c, ok := a.kinds[alert.Kind]
	if !ok {
		c = a.kinds[alertOther]
	}
	c.Inc()
}
