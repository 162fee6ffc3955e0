package natsconn

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// A userKey is a user's JWT and the key that belongs to it.
type userKey struct {
	token  string
	claims *jwt.UserClaims
	key    nkeys.KeyPair // nil if the JWT is a bearer token
}

// readCreds reads a credentials file and checks that its halves fit.
func readCreds(file setting) (userKey, error) {
	b, err := file.read()
	if err != nil {
		return userKey{}, err
	}
	defer clear(b)
	fail := func(what string, err error) (userKey, error) {
		return userKey{}, fmt.Errorf("%s: %s %s: %w", file.key, file.file(), what, err)
	}
	var k userKey
	if k.token, err = nkeys.ParseDecoratedJWT(b); err != nil {
		return fail("is no credentials file", err)
	}
	k.token = strings.TrimSpace(k.token)
	if k.claims, err = jwt.DecodeUserClaims(k.token); err != nil {
		return fail("holds no JWT of a user", err)
	}
	k.key, err = nkeys.ParseDecoratedUserNKey(b)
	if errors.Is(err, nkeys.ErrNoSeedFound) && k.claims.BearerToken {
		k.key = nil
		return k, nil
	}
	if err != nil {
		return fail("holds no key of a user", err)
	}
	public, err := k.key.PublicKey()
	if err == nil && public != k.claims.Subject {
		err = errors.New("the key is another user's")
	}
	if err != nil {
		return fail("does not fit together", err)
	}
	return k, nil
}

// joinCreds makes of a JWT and its seed what a credentials file would hold.
// Without a seed, the JWT is a bearer token.
func joinCreds(token, seed setting) (setting, error) {
	joined := setting{key: token.key, value: token.value, inline: true}
	if !seed.set() {
		return joined, nil
	}
	b, err := jwt.FormatUserConfig(token.value, []byte(seed.value))
	if err != nil {
		return joined, fmt.Errorf("%s and %s: %w", token.key, seed.key, err)
	}
	joined.value = string(b)
	return joined, nil
}

// credsOption reads the file once for every connection, so that the JWT and
// the signature come from the same version of it.
func credsOption(file setting) nats.Option {
	var now userKey
	return nats.UserJWT(func() (string, error) {
		k, err := readCreds(file)
		now = k
		return k.token, err
	}, func(nonce []byte) ([]byte, error) {
		if now.key == nil {
			return nil, nil
		}
		defer now.key.Wipe()
		return now.key.Sign(nonce)
	})
}

// readNKey reads the seed of a user.
func readNKey(file setting) (key nkeys.KeyPair, public string, err error) {
	b, err := file.read()
	if err != nil {
		return nil, "", err
	}
	defer clear(b)
	if key, err = nkeys.ParseDecoratedUserNKey(b); err == nil {
		public, err = key.PublicKey()
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %s holds no seed of a user's nkey: %w", file.key, file.file(), err)
	}
	return key, public, nil
}

// nkeyOption reads the file for every connection. nats.go fixes the public key
// for the life of a connection, so a new key needs a new one.
func nkeyOption(file setting) (nats.Option, error) {
	key, public, err := readNKey(file)
	if err != nil {
		return nil, err
	}
	key.Wipe()
	return nats.Nkey(public, func(nonce []byte) ([]byte, error) {
		key, now, err := readNKey(file)
		if err != nil {
			return nil, err
		}
		defer key.Wipe()
		if now != public {
			return nil, fmt.Errorf("%s: %s holds another key than at the start; restart to use it", file.key, file.file())
		}
		return key.Sign(nonce)
	}), nil
}

// credentialsOption is the option for the credentials that are set, or nil.
func (s *settings) credentialsOption() (nats.Option, error) {
	switch {
	case s.creds.set():
		if _, err := readCreds(s.creds); err != nil {
			return nil, err
		}
		return credsOption(s.creds), nil
	case s.nkey.set():
		return nkeyOption(s.nkey)
	case s.user.set():
		return nats.UserInfo(s.user.value, s.password.value), nil
	case s.token.set():
		return nats.Token(s.token.value), nil
	}
	return nil, nil
}

// credentialsExpiry is when the JWT in the credentials ends.
func (s *settings) credentialsExpiry() (what string, at time.Time, ok bool) {
	if !s.creds.set() {
		return "", time.Time{}, false
	}
	k, err := readCreds(s.creds)
	if err != nil || k.claims.Expires == 0 {
		return "", time.Time{}, false
	}
	return "the credentials in " + s.creds.where(), time.Unix(k.claims.Expires, 0), true
}
