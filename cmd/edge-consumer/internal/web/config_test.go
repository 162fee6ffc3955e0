package web

import (
	"fmt"
	"testing"

	"edge.example/inbox/cmd/edge-consumer/internal/natsconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func TestConfig_Check(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		listen, token string
		wrong         string // in the error; "" for none
	}{
		{"", "", ""},
		{"off", "", ""},
		{DefaultListen, "", ""},
		{"127.8.8.8:1", "", ""},
		{"[::1]:9464", "", ""},
		{"[::ffff:127.0.0.1]:9464", "", ""},
		{"localhost:9464", "", ""},
		{"LOCALHOST:9464", "", ""},
		{"unix:/run/edge-consumer/http.sock", "", ""},

		{"0.0.0.0:9464", "", "every address"},
		{"[::]:9464", "", "every address"},
		{":9464", "", "every address"},
		{"192.168.1.2:9464", "", "set a token"},
		{"[::ffff:10.0.0.1]:9464", "", "set a token"},
		{"[fe80::1%eth0]:9464", "", "set a token"},
		{"gateway:9464", "", "set a token"},
		{"localhost.example.com:9464", "", "set a token"},
		{"127.1:9464", "", "set a token"}, // some resolvers know it; it is no address here

		{"0.0.0.0:9464", "s3cret", ""},
		{":9464", "s3cret", ""},
		{"gateway:9464", "s3cret", ""},

		{"127.0.0.1", "", "want host:port"},
		{"9464", "", "want host:port"},
		{"::1:9464", "", "want host:port"},
		{"127.0.0.1:http", "", "not a port number"},
		{"127.0.0.1:99999", "", "not a port number"},
		{"unix:http.sock", "", "absolute"},
		{DefaultListen, "s3cret\n", "line break"},
		{DefaultListen, "s3 cret", "token"},
		{"off", "schlüssel", "token"},
	} {
		err := Config{tt.listen, natsconn.Secret(tt.token)}.Check()
		if tt.wrong == "" {
			assert.NoError(t, err, "%+v", tt)
			continue
		}
		if assert.ErrorContains(t, err, tt.wrong, "%+v", tt) && tt.token != "" {
			assert.NotContains(t, err.Error(), tt.token)
		}
	}
}

func TestConfig_IsAYAMLSection(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Config{
		"":                              {Listen: DefaultListen},
		"token: abc":                    {Listen: DefaultListen, Token: "abc"},
		"listen: off":                   {Listen: "off"},
		`listen: ""`:                    {},
		`{listen: ":1", token: s3cret}`: {Listen: ":1", Token: "s3cret"},
	} {
		c := DefaultConfig()
		require.NoError(t, yaml.Unmarshal([]byte(text), &c), text)
		assert.Equal(t, want, c, text)
		assert.NotContains(t, fmt.Sprintf("%v %+v %#v", c, c, c), "s3cret")
	}
	assert.True(t, Config{}.Off())
}
