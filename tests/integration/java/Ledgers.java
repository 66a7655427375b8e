import java.nio.charset.StandardCharsets;
import java.util.Enumeration;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Reads a closed ledger, writes one, and leaves one open. Prints what was read and the two ids. */
public class Ledgers {
    public static void main(String[] args) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(args[0]);
        conf.setUseV2WireProtocol(true);
        byte[] password = "secret".getBytes(StandardCharsets.UTF_8);
        BookKeeper client = new BookKeeper(conf);
        LedgerHandle theirs = client.openLedger(Long.parseLong(args[1]), DigestType.CRC32C, new byte[0]);
        int sum = 0;
        Enumeration<LedgerEntry> entries = theirs.readEntries(0, theirs.getLastAddConfirmed());
        while (entries.hasMoreElements()) {
            for (byte each : entries.nextElement().getEntry()) {
                sum += each;
            }
        }
        System.out.println("read " + (theirs.getLastAddConfirmed() + 1) + " " + theirs.getLength() + " " + sum);
        LedgerHandle closed = client.createLedger(3, 2, 2, DigestType.CRC32, password);
        LedgerHandle open = client.createLedger(3, 3, 2, DigestType.MAC, password);
        for (int i = 0; i < 30; i++) {
            closed.addEntry(("closed-" + i).getBytes(StandardCharsets.UTF_8));
            open.addEntry(("open-" + i).getBytes(StandardCharsets.UTF_8));
        }
        closed.close();
        System.out.println("wrote " + closed.getId() + " " + open.getId());
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
