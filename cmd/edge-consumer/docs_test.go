package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// natsMain stands for the nats CLI: nats pub [-H NAME:VALUE]... SUBJECT TEXT is
// all that the documentation uses. It waits for the stream to be there.
func natsMain() {
	if err := natsPub(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nats:", err)
		os.Exit(1)
	}
}

func natsPub(args []string) error {
	if len(args) == 0 || args[0] != "pub" {
		return fmt.Errorf("this stand-in knows nats pub only, not %q", args)
	}
	m := nats.NewMsg("")
	var words []string
	for i := 1; i < len(args); i++ {
		if args[i] != "-H" {
			words = append(words, args[i])
			continue
		}
		i++
		name, value, ok := strings.Cut(args[i], ":")
		if !ok {
			return fmt.Errorf("%q is no NAME:VALUE", args[i])
		}
		m.Header[name] = append(m.Header[name], value)
	}
	if len(words) != 2 {
		return fmt.Errorf("nats pub takes a subject and a text, not %q", words)
	}
	m.Subject, m.Data = words[0], []byte(words[1])
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(1000), jetstream.WithRetryWait(50*time.Millisecond))
	return err
}

// secrets writes the files that the documentation's examples name: credentials,
// an nkey, certificates, and a context of the nats CLI.
func secrets(t *testing.T, dir string) {
	write := func(name string, text []byte) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, text, 0o600))
	}
	creds, seed := credentials(t, time.Time{})
	write("edge.creds", creds)
	write("edge.nk", seed)
	write(".config/nats/context/office.json", []byte(`{"url": "nats://hub.example.com:4222", "creds": "~/edge.creds"}`))

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "docs"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}, &x509.Certificate{SerialNumber: big.NewInt(1)}, key.Public(), key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	write("ca.pem", cert)
	write("client.pem", cert)
	write("client-key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}
