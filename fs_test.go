//go:build linux

package inbox

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNetworkFSName(t *testing.T) {
	t.Parallel()
	for magic, want := range map[uint32]string{
		0x6969:     "nfs",
		0x517B:     "smb",
		0xFF534D42: "cifs",
		0xFE534D42: "smb2",
		0x01021997: "9p",
		0x5346414F: "afs",
		0x6B414653: "afs",
		0x73757245: "coda",
		0x00C36400: "ceph",
		0x564C:     "ncp",
		0xEF53:     "", // ext4
		0x58465342: "", // xfs
		0x9123683E: "", // btrfs
		0x01021994: "", // tmpfs, three off from 9p
		0x65735546: "", // FUSE
		0x794C7630: "", // overlayfs
	} {
		assert.Equal(t, want, networkFSName(magic), "magic %#x", magic)
	}

	// As a 32-bit machine's signed Type holds it.
	magic := int32(-0xACB2BE) // 0xFF534D42
	assert.Equal(t, "cifs", networkFSName(uint32(magic)))
}

func TestNetworkFSNoDirectory(t *testing.T) {
	t.Parallel()
	_, err := networkFS(filepath.Join(t.TempDir(), "none", "edge.db"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
