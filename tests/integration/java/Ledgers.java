import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Enumeration;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;

/** Shows and reads a closed ledger, writes another one, and leaves one open; prints the two ids. */
public class Ledgers {
    public static void main(String[] args) throws Exception {
        ServerConfiguration settings = new ServerConfiguration();
        settings.loadConf(new File(args[1]).toURI().toURL());
        String ledger = args[2];
        shell(settings, "ledgermetadata", "-ledgerid", ledger);
        shell(settings, "readledger", "-ledgerid", ledger, "-msg", "-lastentryid", "99");

        ClientConfiguration conf = new ClientConfiguration(settings);
        conf.setUseV2WireProtocol(true);
        byte[] password = "secret".getBytes(StandardCharsets.UTF_8);
        BookKeeper client = new BookKeeper(conf);
        LedgerHandle theirs = client.openLedger(Long.parseLong(ledger), DigestType.CRC32C, new byte[0]);
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

    private static void shell(ServerConfiguration settings, String... command) throws Exception {
        BookieShell shell =
            new BookieShell(LedgerIdFormatter.LONG_LEDGERID_FORMATTER, EntryFormatter.STRING_FORMATTER);
        shell.setConf(settings);
        if (shell.run(command) != 0) {
            throw new IllegalStateException(command[0] + " failed");
        }
    }
}
