package natsconn

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// readCA reads the certificates to trust.
func (s *settings) readCA() (*x509.CertPool, error) {
	b, err := s.ca.read()
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s: %s holds no PEM certificate", s.ca.key, s.ca.file())
	}
	return pool, nil
}

// readCert reads the client certificate and its key.
func (s *settings) readCert() (tls.Certificate, error) {
	cert, err := s.cert.read()
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := s.certKey.read()
	if err != nil {
		return tls.Certificate{}, err
	}
	defer clear(key)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s, %s: %w", s.cert.key, s.certKey.key, err)
	}
	return pair, nil
}

// tlsOptions are the options for TLS. The callbacks, unlike a tls.Config, are
// asked again at every handshake.
func (s *settings) tlsOptions() ([]nats.Option, error) {
	var opts []nats.Option
	if s.tlsFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	var cert nats.TLSCertHandler
	var ca nats.RootCAsHandler
	var errs []error
	if s.cert.set() {
		_, err := s.readCert()
		cert, errs = s.readCert, append(errs, err)
	}
	if s.ca.set() {
		_, err := s.readCA()
		ca, errs = s.readCA, append(errs, err)
	}
	if cert != nil || ca != nil {
		opts = append(opts, nats.ClientTLSConfig(cert, ca))
	}
	return opts, errors.Join(errs...)
}

// certExpiry is when the client certificate ends.
func (s *settings) certExpiry() (what string, at time.Time, ok bool) {
	if !s.cert.set() {
		return "", time.Time{}, false
	}
	pair, err := s.readCert()
	if err != nil {
		return "", time.Time{}, false
	}
	return "the client certificate in " + s.cert.where(), pair.Leaf.NotAfter, true
}
