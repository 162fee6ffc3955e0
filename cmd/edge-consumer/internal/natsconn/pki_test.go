package natsconn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
)

// write writes a file in a directory of the test.
func write(t *testing.T, name string, content []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	rewrite(t, path, content)
	return path
}

func rewrite(t *testing.T, path string, content []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

// An authority issues certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the test's CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// issue makes a certificate and its key, as PEM.
func (a *authority) issue(name string, until time.Time) (cert, key []byte) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.cert, k.Public(), a.key)
	require.NoError(a.t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(a.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// serverTLS asks for client certificates and sends the names in them to names.
func (a *authority) serverTLS(names chan<- string) *tls.Config {
	a.t.Helper()
	pair, err := tls.X509KeyPair(a.issue("the server", time.Now().Add(time.Hour)))
	require.NoError(a.t, err)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool,
		VerifyConnection: func(c tls.ConnectionState) error {
			names <- c.PeerCertificates[0].Subject.CommonName
			return nil
		},
	}
}

// An operator has one account and makes users of it.
type operator struct {
	t          *testing.T
	key        nkeys.KeyPair
	claims     *jwt.OperatorClaims
	account    nkeys.KeyPair
	accountID  string
	accountJWT string
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	o := &operator{t: t}
	var err error
	o.key, err = nkeys.CreateOperator()
	require.NoError(t, err)
	id, err := o.key.PublicKey()
	require.NoError(t, err)
	signed, err := jwt.NewOperatorClaims(id).Encode(o.key)
	require.NoError(t, err)
	o.claims, err = jwt.DecodeOperatorClaims(signed)
	require.NoError(t, err)
	o.account, err = nkeys.CreateAccount()
	require.NoError(t, err)
	o.accountID, err = o.account.PublicKey()
	require.NoError(t, err)
	o.accountJWT, err = jwt.NewAccountClaims(o.accountID).Encode(o.key)
	require.NoError(t, err)
	return o
}

// rule makes a server obey the operator.
func (o *operator) rule(opts *server.Options) {
	resolver := &server.MemAccResolver{}
	require.NoError(o.t, resolver.Store(o.accountID, o.accountJWT))
	opts.JetStream = false
	opts.TrustedOperators = []*jwt.OperatorClaims{o.claims}
	opts.AccountResolver = resolver
}

// user makes a user; change, if not nil, may change the claims first.
func (o *operator) user(change func(*jwt.UserClaims)) (id, token string, seed []byte) {
	o.t.Helper()
	id, seed = newNKey(o.t)
	claims := jwt.NewUserClaims(id)
	if change != nil {
		change(claims)
	}
	token, err := claims.Encode(o.account)
	require.NoError(o.t, err)
	return id, token, seed
}

// creds makes a user and the content of its credentials file.
func (o *operator) creds(change func(*jwt.UserClaims)) (id string, content []byte) {
	o.t.Helper()
	id, token, seed := o.user(change)
	content, err := jwt.FormatUserConfig(token, seed)
	require.NoError(o.t, err)
	return id, content
}

// newNKey makes a user's key.
func newNKey(t *testing.T) (id string, seed []byte) {
	t.Helper()
	key, err := nkeys.CreateUser()
	require.NoError(t, err)
	id, err = key.PublicKey()
	require.NoError(t, err)
	seed, err = key.Seed()
	require.NoError(t, err)
	return id, seed
}
